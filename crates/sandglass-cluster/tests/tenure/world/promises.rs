//! What must hold.

use sandglass_cluster::home;
use sandglass_model::{HostId, Partition};

use super::{Check, Violation, Weather, World};
use crate::process::{Process, bit};

impl World {
    /// Who may act for a partition owns it, and so no other host may. Nothing goes back to an earlier
    /// generation.
    pub(super) fn check_owners(&mut self) -> Result<(), Violation> {
        let mut acting = 0;
        for slot in &self.slots {
            let Some(process) = &slot.process else { continue };
            let here = process.acting(self.now);
            if here & acting != 0 {
                let partition = (here & acting).trailing_zeros();
                return Err(self.broken(format!("two hosts may act for partition {partition}")));
            }
            acting |= here;
            let served = |partition: &Partition| here & bit(*partition) != 0;
            for partition in Partition::all().filter(served) {
                if self.database.owner(partition) != Some(process.me)
                    || self.database.epoch(partition) != process.epochs[partition.index()]
                {
                    let what =
                        format!("a host may act for partition {partition} without owning it");
                    return Err(self.broken(what));
                }
                let latest = &mut self.generations[partition.index()];
                if process.generation < *latest {
                    let what = format!("partition {partition} goes back to an earlier generation");
                    return Err(self.broken(what));
                }
                *latest = process.generation;
            }
        }
        if let Some(killed) = self.killed_at
            && self.counts.takeover == 0
            && acting == u64::MAX
        {
            self.counts.takeover = self.now - killed;
        }
        Ok(())
    }

    /// What is given away has no handler in flight.
    pub(super) fn check_release(
        &self,
        (slot, life): (usize, u64),
        released: Option<Partition>,
    ) -> Result<(), Violation> {
        let process = self.slots[slot].process.as_ref().filter(|process| process.life == life);
        let (Some(partition), Some(process)) = (released, process) else { return Ok(()) };
        if process.busy_until[partition.index()] <= self.now {
            return Ok(());
        }
        Err(self.broken(format!("partition {partition} is given away with a handler in flight")))
    }

    /// A process that lives is declared dead only if it was silent, which the weather has to
    /// explain.
    pub(super) fn check_declaration(&self, declared: Option<HostId>) -> Result<(), Violation> {
        let living = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        let mut living = living.filter(|process| process.has_joined);
        if !living.any(|process| Some(process.me) == declared) {
            return Ok(());
        }
        match self.weather {
            Weather::Outages => Err(self.broken("an outage of the database has ended a host")),
            Weather::WrongAddresses => Err(self.broken("a wrong address has ended a host")),
            Weather::Kill => Err(self.broken("another host was declared dead than the killed one")),
            Weather::Storm => Ok(()),
        }
    }

    pub(super) fn check(&self, check: Check) -> Result<(), Violation> {
        let living = || self.slots.iter().filter_map(|slot| slot.process.as_ref());
        let hosts: Vec<HostId> = living().map(|process| process.me).collect();
        for partition in Partition::all() {
            let of = |process: &&Process| process.acting(self.now) & bit(partition) != 0;
            let server = living().find(of).map(|process| process.me);
            match check {
                Check::Served if server.is_none() => {
                    // It may be between two hosts, which the other check would not forgive.
                    let moves = self.database.owner(partition).is_none();
                    if !moves {
                        let what = format!("no host serves partition {partition} after the faults");
                        return Err(self.broken(what));
                    }
                }
                Check::AtHome if server.as_ref() != home(partition, &hosts) => {
                    let what = format!("partition {partition} is not at its home after the faults");
                    return Err(self.broken(what));
                }
                Check::Served | Check::AtHome => {}
            }
        }
        Ok(())
    }
}

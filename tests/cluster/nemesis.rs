//! Lets faults happen to the hosts and the database of a trial, and measures their consequences.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock as _, WallTime};
use serde_json::Value;

use crate::binary::{Folder, sandglass};
use crate::clients::World;
use crate::figures::Figures;
use crate::history::{Frozen, Happened, Kind as Violated, Silence, Violation};
use crate::host::{Host, Membership, apply};
use crate::plan::{Cut, Fault, Step, TTL};
use crate::probes::{ACCEPTED_WITHIN, Probes, Swept};
use crate::proxy::wait;
use crate::rig::Rig;
use crate::server::{block, pause};
use crate::verify::EFFECT_GRACE;

/// How long a cluster may take until each partition has a live owner again, and each host owns one.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
/// How long the entities of a host that fails may take to accept an action elsewhere. The goals are shorter;
/// this is for any machine.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(15);
/// How long a load balancer needs to take a host out of rotation.
const OUT_OF_ROTATION: Duration = Duration::from_millis(500);

pub(crate) struct Nemesis<'a> {
    pub(crate) rig: Rig,
    pub(crate) hosts: Vec<Host>,
    pub(crate) folder: &'a Folder,
    pub(crate) world: &'a World,
    pub(crate) probes: &'a Probes,
    pub(crate) figures: Figures,
    pub(crate) happened: Vec<Happened>,
    pub(crate) violations: Vec<Violation>,
}

impl Nemesis<'_> {
    /// Starts all hosts, and waits until each owns a part.
    pub(crate) fn begin(&mut self) {
        for host in &mut self.hosts {
            host.start(self.folder);
        }
        self.wait_until_whole("the start");
        if self.is_cluster() {
            self.compare_with_command();
        }
        self.probes.create(self.world);
    }

    /// The command for people states what a host returns. Partitions may still move at first.
    fn compare_with_command(&mut self) {
        let url = format!("http://{}", self.hosts[0].address);
        let late = self.now().after(WHOLE_WITHIN);
        loop {
            let printed = sandglass(&[&"cluster", &"status", &url, &"--json"]);
            let membership = serde_json::from_str(&printed.out).ok();
            let membership =
                membership.and_then(|body: Value| Membership::of_hosts(&body, &self.hosts));
            let returned = self.membership(0);
            if printed.code == Some(0) && membership.is_some() && membership == returned {
                printed.exits(0);
                return;
            }
            if self.now() > late {
                let what =
                    format!("`cluster status` prints {printed:?}, and the host {returned:?}");
                return self.report(Violated::FalseResponse, what);
            }
            pause();
        }
    }

    fn is_cluster(&self) -> bool {
        self.hosts.len() > 1
    }

    fn now(&self) -> WallTime {
        self.world.clock.wall()
    }

    fn report(&mut self, kind: Violated, what: impl Into<String>) {
        self.violations.push(Violation::new(kind, what));
    }

    /// Measures requests that the receiving host owns, and requests that it forwards.
    pub(crate) fn measure_forwards(&mut self, rounds: usize) {
        let Some(membership) = self.hosts[0].membership(&self.hosts) else { return };
        for _ in 0..rounds {
            for partition in 0..self.probes.count() {
                let owner = (0..self.hosts.len())
                    .find(|host| membership.owned_by(*host).contains(&partition));
                let Some(owner) = owner else { continue };
                let other = (owner + 1) % self.hosts.len();
                let touch = |host| self.probes.touch(self.world, host, partition);
                self.figures.local.add(touch(owner));
                self.figures.forwarded.add(touch(other));
            }
        }
    }

    /// Lets a fault happen, and waits until everything works again.
    pub(crate) fn step(&mut self, step: Step) {
        block(wait(step.pause));
        let fault = step.fault;
        let kind = format!("{:?}", fault.kind());
        *self.figures.faults.entry(kind.clone()).or_default() += 1;
        let owned = self.owned_by(fault.host());
        let begun = self.now();
        let mut happened = Happened {
            what: format!("{fault:?}"),
            begun,
            ended: begun,
            may_interrupt: false,
            is_planned: fault.kind().is_planned(),
            frozen: None,
            silences: Vec::new(),
        };
        let swept = self.suffer(fault, &mut happened);
        if happened.ended == begun {
            happened.ended = self.now();
        }
        let took = happened.ended.since(begun);
        self.happened.push(happened);
        self.take_figures(&kind, fault, swept, &owned);
        let all = self.probes.sweep(self.world, self.now(), None);
        self.check_swept(&kind, &all);
        self.wait_until_whole(&kind);
        let is_alone = !self.is_cluster();
        for index in 0..self.hosts.len() {
            if !self.hosts[index].is_alive() {
                self.report(
                    Violated::Ended,
                    format!("host {index} has ended by itself after {kind}"),
                );
                self.hosts[index].start(self.folder);
            }
        }
        let slowest = all.accepted.values().max().copied().unwrap_or_default();
        let what = if is_alone { "it accepts" } else { "all entities accept" };
        println!("    {took:?}, and {what} actions {slowest:?} after that");
    }

    fn take_figures(&mut self, kind: &str, fault: Fault, swept: Option<Swept>, owned: &[usize]) {
        let Some(swept) = swept else { return };
        let of_host = |partition: &usize| fault.host().is_none() || owned.contains(partition);
        let accepted = swept.accepted.iter().filter(|(partition, _)| of_host(partition));
        let accepted: Vec<Duration> = accepted.map(|(_, time)| *time).collect();
        if accepted.iter().any(|time| *time > TAKEOVER_WITHIN) {
            let what = format!("accepted only after {:?}, in {fault:?}", accepted.iter().max());
            self.report(Violated::Stuck, what);
        }
        if !accepted.is_empty() {
            self.figures.takeovers.entry(kind.to_owned()).or_default().add(accepted);
        }
        let moved = swept.slowest.iter().filter(|(partition, _)| of_host(partition));
        self.figures.moves.add(moved.map(|(_, time)| *time));
    }

    fn check_swept(&mut self, kind: &str, swept: &Swept) {
        let partitions = 0..self.probes.count();
        let stuck: Vec<usize> = partitions.filter(|it| !swept.accepted.contains_key(it)).collect();
        if !stuck.is_empty() {
            let what = format!("partitions {stuck:?}, {ACCEPTED_WITHIN:?} after {kind}");
            self.report(Violated::Stuck, what);
        }
    }

    fn suffer(&mut self, fault: Fault, happened: &mut Happened) -> Option<Swept> {
        let begun = happened.begun;
        match fault {
            Fault::Kill { host, down } => {
                happened.may_interrupt = true;
                self.hosts[host].kill();
                let swept = self.sweep_while(host, |_| block(wait(down)));
                self.silence(happened, host, begun.after(EFFECT_GRACE));
                self.hosts[host].start(self.folder);
                swept
            }
            Fault::Stop { host, length } => {
                happened.may_interrupt = length > TTL * 4 / 5;
                let stopped = self.freeze(host);
                let swept = self.sweep_while(host, |nemesis| {
                    block(wait(length));
                    nemesis.silence(happened, host, begun.after(EFFECT_GRACE));
                    happened.ended = nemesis.now();
                    happened.frozen = Some(nemesis.thaw(host, stopped));
                });
                swept.filter(|_| length > TTL)
            }
            Fault::Zombie { host, stopped, cut } => {
                happened.may_interrupt = true;
                let since = self.freeze(host);
                self.sweep_while(host, |nemesis| {
                    block(wait(stopped));
                    nemesis.cut_database(host, Cut::Close, true);
                    // The stop ends here, and the fault later: a call that was frozen is sent now.
                    let mut stop = happened.clone();
                    stop.ended = nemesis.now();
                    stop.frozen = Some(nemesis.thaw(host, since));
                    nemesis.happened.push(stop);
                    block(wait(cut));
                    nemesis.silence(happened, host, begun.after(EFFECT_GRACE));
                    happened.ended = nemesis.now();
                    nemesis.cut_database(host, Cut::Close, false);
                })
            }
            Fault::CutDatabase { host, how, length } => {
                self.cut(happened, host, how, length, [true, false])
            }
            Fault::CutPeers { host, how, length } => {
                self.cut(happened, host, how, length, [false, true])
            }
            Fault::Isolate { host, how, length } => {
                self.cut(happened, host, how, length, [true, true])
            }
            Fault::Drain { host } => Some(self.follow_while(|nemesis| {
                nemesis.drain(host, true);
                nemesis.drain(host, false);
            })),
            Fault::Restart { host, drains_first } => {
                Some(self.follow_while(|nemesis| nemesis.restart(host, drains_first)))
            }
            Fault::RollingRestart { drains_first } => Some(self.follow_while(|nemesis| {
                for host in 0..nemesis.hosts.len() {
                    nemesis.restart(host, drains_first);
                    nemesis.wait_until_whole("a part of a rolling restart");
                }
            })),
            Fault::KillDatabase { down } => {
                self.rig.server.kill_all();
                Some(self.without_database(happened, down))
            }
            Fault::RestartDatabase { down } => {
                self.rig.server.stop();
                Some(self.without_database(happened, down))
            }
            Fault::Promote => {
                self.rig.promote();
                happened.ended = self.now();
                Some(self.probes.sweep(self.world, happened.ended, None))
            }
        }
    }

    /// Cuts a host from the database, its peers, or both.
    fn cut(
        &mut self,
        happened: &mut Happened,
        host: usize,
        how: Cut,
        length: Duration,
        [database, peers]: [bool; 2],
    ) -> Option<Swept> {
        let cuts = matches!(how, Cut::Close | Cut::Hold);
        happened.may_interrupt = database && !matches!(how, Cut::Delay(_));
        let set = |nemesis: &Self, begins| {
            if database {
                nemesis.cut_database(host, how, begins);
            }
            if peers {
                nemesis.hosts[host].cut_peers(how, begins);
            }
        };
        set(self, true);
        let swept = self.sweep_while(host, |nemesis| {
            block(wait(length));
            if database && cuts {
                let lost = happened.begun.after(TTL + EFFECT_GRACE);
                nemesis.silence(happened, host, lost);
            }
            happened.ended = nemesis.now();
            set(nemesis, false);
        });
        swept.filter(|_| database && cuts && length > TTL)
    }

    fn cut_database(&self, host: usize, how: Cut, begins: bool) {
        let link = &self.rig.links[host];
        apply(how, begins, || link.cut(), |it| link.close(it), |flow| link.set(flow, flow));
    }

    fn without_database(&mut self, happened: &mut Happened, down: Duration) -> Swept {
        block(wait(down));
        for host in 0..self.hosts.len() {
            self.silence(happened, host, happened.begun.after(TTL + EFFECT_GRACE));
        }
        self.rig.server.resume();
        happened.ended = self.now();
        self.probes.sweep(self.world, happened.ended, None)
    }

    /// Stops a host by a signal, and returns when that had been sent.
    fn freeze(&self, host: usize) -> WallTime {
        self.hosts[host].signal("STOP");
        self.now()
    }

    /// Continues a host that was stopped at that time.
    fn thaw(&self, host: usize, stopped: WallTime) -> Frozen {
        self.hosts[host].signal("CONT");
        Frozen { host, stopped, continued: self.now() }
    }

    /// From then on until now, the host must not have begun an effect.
    fn silence(&self, happened: &mut Happened, host: usize, from: WallTime) {
        let to = self.now();
        if from < to {
            happened.silences.push(Silence { host, from, to });
        }
    }

    /// Removes a host from rotation, ends it in order and starts it again.
    fn restart(&mut self, host: usize, drains_first: bool) {
        self.world.in_rotation[host].store(false, Ordering::Relaxed);
        block(wait(OUT_OF_ROTATION));
        if drains_first {
            self.drain(host, true);
        }
        let code = self.hosts[host].terminate();
        if code != Some(0) {
            self.report(Violated::Ended, format!("host {host} ended with {code:?} after SIGTERM"));
        }
        self.hosts[host].start(self.folder);
        self.world.in_rotation[host].store(true, Ordering::Relaxed);
    }

    /// Requests that a host gives all away, and waits until it has; or that it takes its part again.
    fn drain(&mut self, host: usize, is_draining: bool) {
        let late = self.now().after(WHOLE_WITHIN);
        let via = (host + 1) % self.hosts.len();
        let id = self.membership(via).and_then(|membership| membership.ids.get(&host).cloned());
        let drained = id.map(|id| self.hosts[via].drain(&id, is_draining));
        if !matches!(drained, Some(Some((200..300, _)))) {
            self.report(Violated::Undocumented, format!("drain of host {host}: {drained:?}"));
            return;
        }
        if is_draining {
            while self.membership(via).is_none_or(|it| !it.owned_by(host).is_empty()) {
                if self.now() > late {
                    let what = format!("host {host} does not give its partitions away");
                    return self.report(Violated::NoOwner, what);
                }
                pause();
            }
        }
    }

    fn membership(&self, via: usize) -> Option<Membership> {
        self.hosts[via].membership(&self.hosts)
    }

    fn owned_by(&self, host: Option<usize>) -> Vec<usize> {
        let Some(host) = host else { return Vec::new() };
        if !self.is_cluster() {
            return (0..self.probes.count()).collect();
        }
        self.membership(host).map(|it| it.owned_by(host)).unwrap_or_default()
    }

    /// Waits until all hosts see a live owner of each partition, and each owns a part.
    pub(crate) fn wait_until_whole(&mut self, after: &str) {
        if !self.is_cluster() {
            return;
        }
        let late = self.now().after(WHOLE_WITHIN);
        let (partitions, count) = (self.probes.count(), self.hosts.len());
        loop {
            let seen: Vec<_> = (0..count).map(|via| self.membership(via)).collect();
            let is_whole = |it: &Option<Membership>| {
                it.as_ref().is_some_and(|it| it.is_whole(partitions, count))
            };
            if seen.iter().all(is_whole) {
                return;
            }
            if self.now() > late {
                let what = format!("{WHOLE_WITHIN:?} after {after}: {seen:?}");
                return self.report(Violated::NoOwner, what);
            }
            pause();
        }
    }

    /// Touches all entities by other hosts than this one, from now on, while something is done. If there is
    /// no other host, nothing is touched.
    fn sweep_while(&mut self, host: usize, work: impl FnOnce(&mut Self)) -> Option<Swept> {
        let (world, probes, from) = (self.world, self.probes, self.now());
        if !self.is_cluster() {
            work(self);
            return None;
        }
        thread::scope(|threads| {
            let swept = threads.spawn(move || probes.sweep(world, from, Some(host)));
            work(self);
            Some(swept.join().expect("it does not panic"))
        })
    }

    /// Touches all entities again and again while something is done.
    fn follow_while(&mut self, work: impl FnOnce(&mut Self)) -> Swept {
        let (world, probes, is_over) = (self.world, self.probes, AtomicBool::new(false));
        thread::scope(|threads| {
            let swept = threads.spawn(|| probes.follow(world, &is_over));
            work(self);
            is_over.store(true, Ordering::Relaxed);
            swept.join().expect("it does not panic")
        })
    }

    /// Whether a host has a handler in flight, or did not respond.
    pub(crate) fn is_busy(&self) -> bool {
        self.hosts.iter().any(|host| {
            match host.ask("GET /v1/dispatches?in_flight=true", &Value::Null) {
                Some((200, page)) => page["dispatches"].as_array().is_none_or(|it| !it.is_empty()),
                _ => true,
            }
        })
    }
}

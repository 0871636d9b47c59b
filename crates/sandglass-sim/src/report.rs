//! Formats the results of a campaign for people.

use std::fmt::{self, Display};

use crate::campaign::{Comparison, Failure, Summary};
use crate::hosts::HostCounts;

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        writeln!(
            f,
            "{} seeds, {} entities, {} records: {} handlers ({} completed, {} timed out, {} \
             cancelled, {} interrupted), {} asks, {} state timers, {} schedules",
            self.seeds,
            counts.entities,
            counts.records,
            counts.dispatches,
            counts.completed,
            counts.timed_out,
            counts.cancelled,
            counts.interrupted,
            counts.asked,
            counts.idle,
            counts.due
        )?;
        writeln!(
            f,
            "{} requests acknowledged, {} appends failed, {} snapshots, {} crashes, {} restarts",
            counts.acknowledged,
            counts.failed_appends,
            counts.snapshots,
            counts.crashes,
            counts.restarts
        )?;
        if self.hosts.started > 0 {
            self.hosts.fmt(f)?;
        }
        if let Some(compared) = &self.reset_on {
            compared.fmt(f)?;
        }
        for failure in &self.failures {
            failure.fmt(f)?;
        }
        match self.failed {
            0 => write!(f, "every invariant held"),
            1 => write!(f, "1 seed failed"),
            failed if failed > self.failures.len() => {
                write!(f, "{failed} seeds failed, of which these are the lowest")
            }
            failed => write!(f, "{failed} seeds failed"),
        }
    }
}

impl Display for HostCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} processes: {} killed, {} pauses, {} declared dead, {} entered again; {} cuts, {} \
             outages and {} failovers of the database, which lost {} records",
            self.started,
            self.killed,
            self.pauses,
            self.declared,
            self.rejoined,
            self.cuts,
            self.outages,
            self.failovers,
            self.lost
        )?;
        writeln!(
            f,
            "{} partitions taken from dead hosts, {} given away; {} requests forwarded, {} appends of \
             unknown outcome, {} effects, {} records read from the feed",
            self.taken, self.moves, self.forwards, self.unknown, self.effects, self.fed
        )
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "reset_on: state timers fired {} times with what the states' own handlers",
            self.fired_with
        )?;
        writeln!(
            f,
            "  send in it, and {} times without: {} with a handler in flight, {} that the",
            self.fired_without, self.fired_in_flight, self.fired_anew
        )?;
        writeln!(
            f,
            "  old rule would not have fired. The old rule would have ended {} healthy",
            self.spared
        )?;
        writeln!(f, "  handlers. In {} seeds anything but the specs differs.", self.differing)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} fails, in {} steps: {}", self.seed, self.steps, self.violation)?;
        writeln!(f, "  {}", self.command)
    }
}

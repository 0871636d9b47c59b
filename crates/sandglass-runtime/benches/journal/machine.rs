//! What the figures were measured on.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::timing::Quantiles;

/// Syncs that are timed: enough for a 99th percentile.
const SYNCS: usize = 300;

/// Prints the cores, and how long the disk takes to sync 4 KiB that were appended: no
/// durable answer is faster.
pub(crate) fn print(folder: &Path) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut file = File::create(folder.join("sync")).expect("a folder that takes files");
    let syncs = (0..SYNCS).map(|_| {
        let begun = Instant::now();
        file.write_all(&[7; 4096]).expect("room");
        file.sync_data().expect("a disk that works");
        begun.elapsed()
    });
    println!("{cores} cores; a sync of 4 KiB takes {}\n", Quantiles::of(syncs.collect()));
}

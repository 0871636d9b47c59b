//! What the simulator promises: seeds hold, they come to the same each time, and what is
//! wrong on purpose is found.

mod crashes;
mod faults;
mod reset_on;
mod seeds;

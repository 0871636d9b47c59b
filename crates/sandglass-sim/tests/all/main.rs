//! Tests of the simulator: no seed violates an invariant, a seed leads to the same result each
//! time, and injected faults are found.

mod crashes;
mod faults;
mod hosts;
mod reset_on;
mod seeds;

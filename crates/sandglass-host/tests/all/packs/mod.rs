//! Packs of OpenWOP nodes: what they are, what they reach, how they end, and that a run of
//! them can be had again.

mod describing;
mod ending;
mod invoking;
mod kit;
mod loading;
mod replaying;

//! Packs of OpenWOP nodes: their description, what they reach, how they end, and their replay.

mod describing;
mod ending;
mod invoking;
mod kit;
mod loading;
mod replaying;

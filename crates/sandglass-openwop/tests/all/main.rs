//! The OpenWOP host as its clients see it.

mod definitions;

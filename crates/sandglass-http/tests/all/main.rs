//! The crate's public face, over real sockets on the loopback address.

mod bodies;
mod clients;
mod ending;
mod slots;
mod streams;
mod tls;
mod world;

//! What the targets promise, of every input that is kept.

mod corpus;

//! Checks the promises of the targets, for every input of the corpus.

mod corpus;

//! The SDK as authors use it: handlers with a test's host, and what is no handler.

mod handlers;
mod rejections;
mod wit;

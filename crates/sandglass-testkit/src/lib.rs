//! Tests guests of Sandglass against a scripted world, in virtual time: without network, actor runtime
//! or waiting. A hang of fifteen minutes takes milliseconds.
//!
//! A [`Case`] defines the handler's input, the answers of the world to its calls (or that an answer
//! never comes), and the expected ending. [`Kit::run`] runs it in the host that production uses, with
//! its real deadlines, limits and grants.
//!
//! ```
//! use std::time::Duration;
//!
//! use sandglass_host::Manifest;
//! use sandglass_model::OutcomeKind;
//! use sandglass_testkit::{Answer, Case, Expected, Kit};
//!
//! let mut kit = Kit::new()?;
//! // Fetches a page.
//! let fetches = br#"(module
//!     (import "env" "host_http_call" (func $call
//!         (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
//!     (memory (export "memory") 1)
//!     (data (i32.const 0) "GEThttps://example.com/")
//!     (func (export "run") (param i32 i32) (result i32)
//!         (drop (call $call (i32.const 0) (i32.const 3) (i32.const 3) (i32.const 20)
//!             (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
//!             (i32.const 1024) (i32.const 1024)))
//!         i32.const 0))"#;
//! let manifest = Manifest::named("fetches").allow_hosts(["example.com".parse()?]);
//! let guest = kit.load(fetches, manifest)?;
//!
//! let result = kit.run(&guest, &Case {
//!     deadline: Duration::from_secs(240),
//!     answers: vec![Answer::http("GET", "https://example.com/").never()],
//!     expected: Expected {
//!         outcome: OutcomeKind::TimedOut,
//!         dying_span: Some("host_http_call".to_owned()),
//!         calls: Some(vec!["host_http_call".to_owned()]),
//!         ..Expected::default()
//!     },
//!     ..Case::default()
//! })?;
//! assert!(result.passed(), "{:?}", result.differences);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Suite`] reads cases from TOML files next to the guest; `sandglass test` runs these.

mod answer;
mod case;
mod clock;
mod difference;
mod file;
mod function;
mod kit;
mod suite;
mod update;
mod world;

pub use answer::{Answer, Call, Reply};
pub use case::{Case, Expected, called_functions};
pub use difference::Difference;
pub use file::{CASES_MAX, SOURCE_MAX_BYTES};
pub use kit::{Builder, CaseResult, Error, Guest, Kit};
pub use suite::{FILE_SUFFIX, Suite, SuiteError};
pub use update::{Update, UpdateError};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct Testing;

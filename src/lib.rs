//! tprimat: a build system for LLM-training benchmarks.
//!
//! The flow, one stage a module; each is one arrow and does not reach back:
//!
//! | stage | from | to |
//! |---|---|---|
//! | [`config`] | config.yaml, environment, `--set` | [`config::Config`]: every value with its origin |
//! | [`matrix`] | pipelines/*.toml, selection | cells: the points of the matrix |
//! | [`data`] | .bin/.idx, text | token files: verified, named by content, cut into samples |
//! | [`recipe`] | recipes/*, templates/* | [`recipe::Recipe`]: how a framework runs, what it cannot do |
//! | [`plan`] | cells × recipes × config | [`plan::Job`]s: all that one cell depends on |
//! | [`graph`] | jobs × lock × cache | petgraph DAG of tasks, keys, states and their reasons |
//! | [`execute`] | DAG | outcomes: supervised runs, attempts |
//! | [`cache`] | bytes, entries, attempts | objects and records that survive a kill |
//! | [`host`] | this machine | its facts, tprimat.lock |
//! | [`parse`] | log bytes | [`parse::Trace`] |
//! | [`analyze`] | traces | results, summaries, comparisons (pure) |
//! | [`import`] | logs and results of others | runs that are shown beside ours, labelled |
//! | [`report`] | comparisons | tables and pictures (pure; writes nothing itself) |
//! | [`cli`] | arguments | a request, an exit code |

pub mod cli;
pub mod config;
pub mod data;
pub mod execute;
pub mod graph;
pub mod host;
pub mod import;
pub mod matrix;
pub mod plan;
pub mod recipe;

pub use tprimat_base::{digest, error, files};
pub use tprimat_cache as cache;
pub use tprimat_figures as analyze;
pub use tprimat_logs as parse;
pub use tprimat_report as report;
pub use tprimat_words::plain;

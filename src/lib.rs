//! tprimat: a build system for LLM-training benchmarks.
//!
//! The path of one cell through the code, from `tprimat build` to the published page, is listed in
//! ARCHITECTURE.md ("The path of one cell"). The table below lists who may import whom: a module of
//! `src/` may use the modules above it and none below it (`tests/suite/arrows.rs`).
//!
//! | module or crate | from | to |
//! |---|---|---|
//! | [`cache`] | bytes, entries, attempts | objects and records that survive a kill; a folder or bucket where caches share them |
//! | [`shipped`] | the binary | the files that ship inside it: recipes, templates, matrices |
//! | [`config`] | config.yaml, environment, `--set` | [`config::Config`]: every value with its origin |
//! | [`matrix`] | pipelines/*.toml, selection | cells: the points of the matrix |
//! | [`data`] | .bin/.idx, text | token files: verified, named by content, cut into samples |
//! | [`recipe`] | recipes/*, templates/* | [`recipe::Recipe`]: how a framework runs, what it cannot do; launch files from its templates |
//! | [`host`] | this machine | its facts, tprimat.lock |
//! | [`plan`] | cells × recipes × config × lock | [`job::Job`]s: all that one cell depends on |
//! | [`import`] | logs and results of others | runs that are shown beside ours, labelled |
//! | [`publish`] | outputs of tasks | the files of the output folder, and which of them are still as published |
//! | [`graph`] | jobs × cache | petgraph DAG of tasks, keys, states and their reasons |
//! | [`run`] | one run's spec | the run beside its supervisor, here, in a container, as a job; how it ended |
//! | [`execute`] | DAG | attempts of runs; results, comparisons and pages |
//! | [`cli`] | arguments | a request, an exit code |
//!
//! The modules use these crates of the workspace; what each of them may depend on is in
//! ARCHITECTURE.md and in the same test.
//!
//! | crate | from | to |
//! |---|---|---|
//! | [`job`] | – | what tprimat and a trainer tell each other: job, samples of a dataset, exit codes, classes of failure |
//! | [`digest`], [`error`], [`files`], [`growing`], [`secrets`], [`words`] | – | `tprimat-base`: digests, errors with their place, the one module that writes files, what nobody may read, text that is safe to print |
//! | [`logs`] | log bytes | [`logs::Trace`] |
//! | [`results`], [`figures`] | trace × job | `tprimat-numbers`: one repeat; summaries, comparisons, verdicts of gates |
//! | [`report`] | comparisons | tables, pictures and a page |
//!
//! `tprimat-native`, the libtorch trainer, is a program of its own.
// A byte position in foreign text may lie within a character: `tprimat_base::words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

pub mod cache;
pub mod cli;
pub mod config;
pub mod data;
#[cfg(test)]
#[path = "../crates/job/src/samples/dataset_for_tests.rs"]
mod dataset_for_tests;
pub mod execute;
pub mod graph;
pub mod host;
pub mod import;
pub mod matrix;
#[cfg(test)]
mod mock;
pub mod plan;
pub mod publish;
pub mod recipe;
pub mod run;
pub mod shipped;

pub use tprimat_base::{digest, error, files, growing, secrets, words};
pub use tprimat_job as job;
pub use tprimat_logs as logs;
pub use tprimat_numbers::{figures, results};
pub use tprimat_report as report;

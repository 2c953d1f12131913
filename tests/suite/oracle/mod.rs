//! What tprimat gives for every log that we have, and for a matrix of stub trainers: values, states,
//! refusals and verdicts, as scripts read them from `parse --json`, `import --json`, `compare --json`
//! and `gate --json`. The files of tests/fixtures/oracle hold another tprimat to them.
//!
//! A field that gets another name is read here under the name that the files have, so that a
//! redesign changes no line of them. English is not held: that a reason is given and which numbers
//! are in it is.

mod flat;
mod held;
mod imports;
mod logs;
mod matrix;

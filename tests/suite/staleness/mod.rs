//! Change one thing, and exactly the right tasks run.
mod code;
mod edits;
mod evidence;
mod failures;
mod fault;
mod imports;
mod lost;
mod options;
mod oracle;
mod random;
mod shared;
mod undeclared;
mod world;

/// All that comes after the summaries.
const LATER: &str = "{compare,plot,report} m";

//! The sentences of `tprimat-sentences`, compiled into the tests, so that these can read what
//! people read.
#![allow(dead_code, unused_imports, reason = "the tests use some of them")]

#[path = "../../sentences/src/comparison.rs"]
mod comparison;
#[path = "../../sentences/src/facts.rs"]
mod facts;
#[path = "../../sentences/src/gate.rs"]
mod gate;
#[path = "../../sentences/src/metric.rs"]
mod metric;
#[path = "../../sentences/src/results.rs"]
mod results;
#[path = "../../sentences/src/run.rs"]
mod run;
#[path = "../../sentences/src/words.rs"]
mod words;

pub use comparison::*;
pub use facts::*;
pub use gate::*;
pub use results::*;
pub use run::*;
pub use words::*;

use crate as figures;

impl crate::Note {
    pub fn text(&self) -> String {
        said(&self.fact)
    }
}

impl crate::GateCell {
    /// The reason, and the notes in lines.
    pub fn words(&self) -> (String, String) {
        (said(&self.reason), each(&self.notes).join("\n"))
    }
}

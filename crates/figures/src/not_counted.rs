//! Measurements of a cell that went well and do not count: whoever reads a figure must know that
//! others were there to choose from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Note, NoteKind, RunFact, Summary};

/// What was measured of one repeat besides the attempt that counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Dropped {
    pub repeat: u32,
    /// Measurements that counted until `--force=measured`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remeasured: u32,
    /// Runs that something else disturbed, and that were replaced.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u32,
    /// Why somebody set a measurement aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Dropped {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.remeasured == 0 && self.disturbed == 0 && self.set_aside.is_empty()
    }
}

impl Summary {
    /// The summary with what was measured of its repeats and does not count.
    #[must_use]
    pub fn disclosing(mut self, dropped: Vec<Dropped>) -> Self {
        self.notes.extend(notes(&dropped));
        self.dropped = dropped;
        self
    }
}

fn notes(dropped: &[Dropped]) -> Vec<Note> {
    let repeats = |of: fn(&Dropped) -> u32| {
        dropped
            .iter()
            .filter(|d| of(d) > 0)
            .map(|d| d.repeat)
            .collect()
    };
    let total = |of: fn(&Dropped) -> u32| dropped.iter().map(of).sum::<u32>();
    let mut facts = Vec::new();
    let measurements = total(|d| d.remeasured);
    if measurements > 0 {
        facts.push(RunFact::MeasuredAnew {
            repeats: repeats(|d| d.remeasured),
            measurements,
        });
    }
    for dropped in dropped {
        let repeat = dropped.repeat;
        facts.extend(dropped.set_aside.iter().map(|why| RunFact::SetAside {
            repeat,
            why: why.clone(),
        }));
    }
    let disturbed = total(|d| d.disturbed);
    if disturbed > 0 {
        facts.push(RunFact::MeasuredAgain {
            repeats: repeats(|d| d.disturbed),
            disturbed,
        });
    }
    facts
        .into_iter()
        .map(|fact| Note::new(NoteKind::Remark, fact))
        .collect()
}

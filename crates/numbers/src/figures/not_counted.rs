//! Measurements of a cell that went well and do not count: whoever reads a figure must know that
//! others were there to choose from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::results::words::{repeats as named, verb};
use tprimat_base::words::plain::counted;

use super::{Note, Summary, summary::notes::remark};

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

/// `measured anew`, `1 set aside`: what is said of all repeats beside a figure.
#[must_use]
pub fn dropped_words(dropped: &[Dropped]) -> Vec<String> {
    let set_aside: usize = dropped.iter().map(|d| d.set_aside.len()).sum();
    let disturbed: u32 = dropped.iter().map(|d| d.disturbed).sum();
    let mut words = Vec::new();
    if dropped.iter().any(|d| d.remeasured > 0) {
        words.push("measured anew".to_owned());
    }
    if set_aside > 0 {
        words.push(format!("{set_aside} set aside"));
    }
    if disturbed > 0 {
        words.push(format!("{disturbed} disturbed and replaced"));
    }
    words
}

fn notes(dropped: &[Dropped]) -> Vec<Note> {
    let repeats = |of: fn(&Dropped) -> u32| -> Vec<u32> {
        dropped
            .iter()
            .filter(|d| of(d) > 0)
            .map(|d| d.repeat)
            .collect()
    };
    let total = |of: fn(&Dropped) -> u32| dropped.iter().map(of).sum::<u32>();
    let mut notes = Vec::new();
    let measurements = total(|d| d.remeasured);
    if measurements > 0 {
        let of = repeats(|d| d.remeasured);
        let earlier = match measurements {
            1 => "the earlier result does".to_owned(),
            n => format!("the {n} earlier results do"),
        };
        let text = format!(
            "{} {} measured again on request (--force=measured); {earlier} not count. Intervals assume that nobody picked the better ones",
            named(&of),
            verb(&of, "was", "were")
        );
        notes.push(remark("measured_anew", text).with("repeats", of));
    }
    for Dropped {
        repeat, set_aside, ..
    } in dropped
    {
        notes.extend(set_aside.iter().map(|why| {
            let text = format!("a run of repeat {repeat} was set aside by hand: {why}");
            remark("set_aside", text).with("repeat", *repeat)
        }));
    }
    let disturbed = total(|d| d.disturbed);
    if disturbed > 0 {
        let of = repeats(|d| d.disturbed);
        let text = format!(
            "{} {} measured again after something else disturbed {}",
            named(&of),
            verb(&of, "was", "were"),
            counted(disturbed as usize, "run")
        );
        notes.push(remark("measured_again", text).with("repeats", of));
    }
    notes
}

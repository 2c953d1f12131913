//! Measurements of a cell that went well and do not count: whoever reads a figure must know that
//! others were there to choose from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    let words = dropped_words(dropped);
    let text = format!(
        "there are runs that do not count: {}. Intervals assume that nobody picked the better ones",
        words.join(", ")
    );
    let all = (!words.is_empty()).then(|| remark("dropped", text));
    let set_aside = dropped.iter().flat_map(|of| {
        of.set_aside.iter().map(|why| {
            let text = format!("a run of repeat {} was set aside by hand: {why}", of.repeat);
            remark("set_aside", text).with("repeat", of.repeat)
        })
    });
    all.into_iter().chain(set_aside).collect()
}

//! Measurements of a cell that went well and do not count: whoever reads a figure must know that others were there to choose
//! from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Note, NoteKind, Summary};

/// What was measured of one repeat besides the attempt that counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Dropped {
    pub repeat: u32,
    /// Measurements that counted until `--remeasure`.
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
    let mut notes = Vec::new();
    let mut remark = |text: String| notes.push(Note::new(NoteKind::Remark, text));
    let anew: u32 = dropped.iter().map(|d| d.remeasured).sum();
    if anew > 0 {
        let repeats = numbers(dropped.iter().filter(|d| d.remeasured > 0));
        let were = if anew == 1 { "1 earlier measurement does" } else { &format!("{anew} earlier measurements do") };
        remark(format!(
            "{repeats} measured anew (--remeasure) when a result was there already: {were} not count; intervals assume that \
             nobody chose between them"
        ));
    }
    for dropped in dropped {
        for why in &dropped.set_aside {
            remark(format!("a measurement of repeat {} was set aside by hand: {why}", dropped.repeat));
        }
    }
    let disturbed: u32 = dropped.iter().map(|d| d.disturbed).sum();
    if disturbed > 0 {
        let repeats = numbers(dropped.iter().filter(|d| d.disturbed > 0));
        let runs = if disturbed == 1 { "1 run" } else { &format!("{disturbed} runs") };
        remark(format!("{repeats} measured again after something else disturbed {runs}"));
    }
    notes
}

/// `repeat 1 was`, `repeats 1, 2 were`
fn numbers<'a>(dropped: impl Iterator<Item = &'a Dropped>) -> String {
    let numbers: Vec<String> = dropped.map(|d| d.repeat.to_string()).collect();
    let (s, were) = if numbers.len() == 1 { ("", "was") } else { ("s", "were") };
    format!("repeat{s} {} {were}", numbers.join(", "))
}

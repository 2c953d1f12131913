//! `trainer_state.json`: the Trainer's lines as objects below `log_history`, one a line or indented.

use crate::{
    builder::Builder,
    values::{Block, count_after, has, once},
};

#[derive(Default)]
pub struct State {
    seen: bool,
    object: Option<Block>,
    tokens: Option<u64>,
}

pub enum Found {
    /// The line is none of it, or one that is read as others are.
    Nothing,
    Part,
    Whole(String),
}

impl State {
    pub fn line(&mut self, text: &str, out: &mut Builder) -> Found {
        self.seen |= has(text, "\"log_history\"");
        if !self.seen {
            return Found::Nothing;
        }
        if self.object.is_none() && text.trim() == "{" {
            self.object = Some(Block::default());
        }
        if let Some(object) = &mut self.object {
            // Commas part its members; the one behind it parts it from the next.
            let text = text.trim();
            let line = if text.starts_with('}') { "}" } else { text };
            return match object.add(line) {
                Ok(None) => Found::Part,
                whole => {
                    self.object = None;
                    let whole = whole.ok().flatten();
                    whole.map_or(Found::Nothing, |text| Found::Whole(text.replace('\n', "")))
                }
            };
        }
        if let Some(steps) = count_after(text, "\"max_steps\": ") {
            once("train_iters", steps, out);
        }
        self.tokens = count_after(text, "\"num_input_tokens_seen\": ").or(self.tokens);
        Found::Nothing
    }

    /// The tokens of all steps are stated once: those of each are their mean.
    pub fn end(&self, out: &mut Builder) {
        let steps = &mut out.trace.steps;
        let last = steps.last().map_or(0, |s| s.step);
        let each = self
            .tokens
            .and_then(|tokens| (tokens + last / 2).checked_div(last));
        if let Some(each) = each.filter(|n| *n > 0 && steps.iter().all(|s| s.tokens.is_none())) {
            steps.iter_mut().for_each(|s| s.tokens = Some(each));
        }
    }
}

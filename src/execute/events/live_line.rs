//! Progress for a terminal: one line that says what goes on, below the lines of what is done.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    Amount, Event, Progress, Reporter, is_no_news,
    wording::{sentence, step_words},
};
use crate::words::plain;

pub struct LiveLine {
    pub(super) line: ProgressBar,
    tells_all: bool,
    progress: Progress,
}

impl LiveLine {
    #[must_use]
    pub fn new(amount: Amount) -> Self {
        Self::on(ProgressDrawTarget::stderr(), amount)
    }

    pub(super) fn on(target: ProgressDrawTarget, amount: Amount) -> Self {
        let line = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{elapsed}  {wide_msg}") {
            line.set_style(style);
        }
        Self {
            line,
            tells_all: amount == Amount::EveryTask,
            progress: Progress::default(),
        }
    }

    fn say(&self, event: &Event) {
        self.line.println(sentence(event));
    }

    /// What a run does. The line is cut at the terminal's edge, so the name comes last.
    fn show(&self, task: &str, words: &str) {
        let mut text = format!("{words}  {task}");
        if let Some(how_far) = self.progress.told() {
            text += &format!("; {how_far}");
        }
        self.line.set_message(plain::line(&text).into_owned());
    }
}

impl Reporter for LiveLine {
    fn report(&mut self, event: &Event) {
        let is_running =
            |progress: &Progress, task: &str| progress.running.iter().any(|run| run.task == task);
        let was_running =
            matches!(event, Event::TaskFinished { task, .. } if is_running(&self.progress, task));
        self.progress.take(event);
        match event {
            Event::BuildStarted { .. } => self.line.enable_steady_tick(Duration::from_secs(1)),
            Event::TaskStarted {
                task,
                repeat: Some(_),
                ..
            } => self.show(task, "starting"),
            Event::TaskWaiting { task, what_for } if is_running(&self.progress, task) => {
                self.show(task, &format!("waiting for {what_for}"));
            }
            Event::Step { task, .. } => self.show(task, &step_words(event)),
            Event::TaskFinished { outcome, .. } => {
                if was_running || !is_no_news(*outcome) || self.tells_all {
                    self.say(event);
                }
                self.line
                    .set_message(self.progress.told().unwrap_or_default());
            }
            Event::TaskStarted { .. } if !self.tells_all => {}
            Event::BuildFinished { .. } => {
                self.say(event);
                self.line.finish_and_clear();
            }
            _ => self.say(event),
        }
    }
}

//! Progress for a terminal: a bar for each measurement that runs.

use std::{collections::HashMap, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    Amount, Event, Progress, Reporter, is_no_news,
    wording::{sentence, step_words},
};
use crate::words::plain;

/// One bar for each running measurement, below the lines of what is done.
pub struct Bars {
    all: MultiProgress,
    tasks: ProgressBar,
    pub(super) running: HashMap<String, ProgressBar>,
    tells_all: bool,
    progress: Progress,
    /// A line has no room for a bar, and one that is too long would take two.
    pub(super) is_narrow: bool,
}

/// Columns that a bar with its name, its step and its time left takes.
const ROOM_FOR_A_BAR: u16 = 100;

impl Bars {
    #[must_use]
    pub fn new(amount: Amount) -> Self {
        Self::on(ProgressDrawTarget::stderr(), amount)
    }

    pub(super) fn on(target: ProgressDrawTarget, amount: Amount) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let tasks = all.add(ProgressBar::no_length());
        tasks.set_style(style("{pos}/{len} tasks  {elapsed}  {msg}"));
        Self {
            all,
            tasks,
            running: HashMap::new(),
            tells_all: amount == Amount::EveryTask,
            progress: Progress::default(),
            is_narrow: console::Term::stderr()
                .size_checked()
                .is_some_and(|(_, columns)| columns < ROOM_FOR_A_BAR),
        }
    }

    /// What a bar says; cut at the terminal's edge, so on a narrow one the name comes last.
    pub(super) fn message(&self, task: &str, words: &str) -> String {
        let text = match self.is_narrow {
            true => format!("{words}  {task}"),
            false => words.to_owned(),
        };
        plain::line(&text).into_owned()
    }

    fn say(&self, event: &Event) {
        let _ = self.all.println(sentence(event));
    }
}

pub(super) const NARROW: &str = "{wide_msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

impl Reporter for Bars {
    fn report(&mut self, event: &Event) {
        self.progress.take(event);
        let how_far = self.progress.told().unwrap_or_default();
        self.tasks.set_message(how_far);
        match event {
            Event::BuildStarted { stale, .. } => {
                self.tasks.set_length(*stale as u64);
                self.tasks.enable_steady_tick(Duration::from_secs(1));
            }
            Event::TaskStarted {
                task,
                repeat: Some(_),
                ..
            } => {
                let bar = self
                    .all
                    .insert_before(&self.tasks, ProgressBar::no_length());
                bar.set_style(style(match self.is_narrow {
                    true => NARROW,
                    false => "{prefix}  {msg}  {elapsed}",
                }));
                bar.set_prefix(plain::line(task).into_owned());
                bar.set_message(self.message(task, "starting"));
                self.running.insert(task.clone(), bar);
            }
            Event::TaskStarted { .. } if self.tells_all => self.say(event),
            Event::TaskStarted { .. } => {}
            Event::TaskWaiting { task, what_for } => match self.running.get(task) {
                Some(bar) => {
                    bar.set_message(self.message(task, &format!("waiting for {what_for}")))
                }
                None => self.say(event),
            },
            Event::Step {
                task,
                step,
                steps_total,
                ..
            } => {
                let Some(bar) = self.running.get(task) else {
                    return;
                };
                if let Some(total) = steps_total.filter(|total| bar.length() != Some(*total)) {
                    bar.set_length(total);
                    bar.set_style(style(match self.is_narrow {
                        true => NARROW,
                        false => "{prefix} [{bar:20}] {msg}  {eta} left",
                    }));
                }
                bar.set_position(*step);
                bar.set_message(self.message(task, &step_words(event)));
            }
            Event::TaskFinished { task, outcome, .. } => {
                let bar = self.running.remove(task);
                if let Some(bar) = &bar {
                    bar.finish_and_clear();
                    self.all.remove(bar);
                }
                self.tasks.inc(1);
                if bar.is_some() || !is_no_news(*outcome) || self.tells_all {
                    self.say(event);
                }
            }
            Event::TaskGoesOn { .. } | Event::Note { .. } => self.say(event),
            Event::BuildFinished { .. } => {
                self.say(event);
                self.tasks.finish_and_clear();
            }
        }
    }
}

//! What people are told of a task's start and end, and what to do about a failure.

use std::io::Read;

use super::Scheduler;
use crate::{
    cache::{Attempt, TaskKind, is_interrupted},
    execute::events::{Event, Outcome},
    figures::{
        codes::{NO_STEP, SUSPECT},
        failure_class,
    },
    graph::{State, Statuses, TaskId, label},
    job::{FailureClass, RunOutcome},
    logs,
    matrix::CellId,
    plan::Plan,
    recipe::COMMAND,
    report,
    results::Reason,
    run::executor::Interrupted,
    words::plain::counted,
};

/// A run that ended well, and whose log is not parsed yet.
pub(super) struct Unread {
    pub name: String,
    pub seconds: f64,
}

impl Scheduler<'_> {
    fn name(&self, node: TaskId) -> String {
        label(self.engine.plan, &self.engine.dag.task(node))
    }

    pub(super) fn say(&self, message: String) {
        self.events.report(&Event::Note { message });
    }

    pub(super) fn say_started(&self, node: TaskId, statuses: &Statuses) {
        let task = self.engine.dag.task(node);
        let name = self.name(node);
        let present = || self.engine.present(node, statuses);
        let reason = statuses.get(node).reason.as_ref();
        let reason = reason.map(|r| r.describe(self.engine, task.kind, &name, present));
        self.events.report(&Event::TaskStarted {
            task: name,
            cell: (!task.kind.is_over_all()).then(|| self.engine.plan.cells[task.cell].id.clone()),
            // Only what measures has one: people watch runs, not bookkeeping.
            repeat: (task.kind == TaskKind::Train).then_some(task.repeat),
            reason: reason.unwrap_or_default(),
        });
    }

    /// Says of a task that will not run whether it needs no run or cannot have one.
    pub(super) fn say_settled(&self, node: TaskId, statuses: &Statuses) {
        let outcome = match statuses.get(node).state {
            State::Fresh => Outcome::Cached,
            _ => Outcome::Waiting,
        };
        self.say_finished(self.name(node), outcome, 0.0);
    }

    pub(super) fn say_ended_well(&self, task: String, seconds: f64) {
        self.say_finished(task, Outcome::Ok, seconds);
    }

    /// The end of a task of which there is nothing else to say.
    fn say_finished(&self, task: String, outcome: Outcome, seconds: f64) {
        self.events.report(&Event::TaskFinished {
            task,
            outcome,
            seconds,
            class: None,
            evidence: Vec::new(),
            what_to_do: None,
        });
    }

    pub(super) fn say_failed(&self, node: TaskId, outcome: &RunOutcome, seconds: f64) {
        let RunOutcome::Failed {
            class,
            evidence,
            status,
        } = outcome
        else {
            return;
        };
        let mut evidence = evidence.clone();
        let (ended, class, advice) = match is_interrupted(outcome) {
            true => (
                Outcome::Interrupted,
                None,
                "nothing: the next build runs it again".to_owned(),
            ),
            false => {
                if !evidence.contains(status) {
                    evidence.push(status.clone());
                }
                let cell = self.engine.dag.task(node).cell;
                let advice = advice_on(self.engine.plan, cell, *class);
                (Outcome::Failed, Some(*class), advice)
            }
        };
        self.events.report(&Event::TaskFinished {
            task: self.name(node),
            outcome: ended,
            seconds,
            class,
            evidence,
            what_to_do: Some(advice),
        });
    }

    /// Says of a task of which nothing was recorded that it failed, and why.
    pub(super) fn say_not_run(&self, node: TaskId, why: &str) {
        self.events.report(&Event::TaskFinished {
            task: self.name(node),
            outcome: Outcome::Failed,
            seconds: 0.0,
            class: None,
            evidence: vec![why.to_owned()],
            what_to_do: None,
        });
    }

    /// What a person should know of an attempt besides how it ended.
    pub(super) fn say_what_is_odd(&mut self, node: TaskId, attempt: &Attempt) {
        let name = self.name(node);
        if let Some(told) = attempt.undeclared.told()
            && self.told.insert(told.clone())
        {
            self.say(format!("{name}: {told}"));
        }
        if let (Some(why), RunOutcome::Failed { .. }) = (&attempt.suspect, &attempt.outcome) {
            self.say(format!(
                "{name} may not fail again, so the next build tries it once more: {why}"
            ));
        }
    }

    /// Says what the next training waits for, where one is to come and the wait is noticed.
    pub(super) fn say_cooldown(&self, after: TaskId, seconds: f64) {
        if seconds < 1.0 {
            return;
        }
        if let Some(next) = self.queue.trainings().next() {
            let after = self.name(after);
            self.events.report(&Event::TaskWaiting {
                task: self.name(next.node),
                what_for: format!("the cooldown of {seconds:.0} s after {after}"),
            });
        }
    }

    /// A trainer may take its whole grace to end, and silence would look like a hang. A run of another
    /// tprimat that this one waited for goes on, and so do jobs that are not cancelled.
    pub(super) fn say_what_is_waited_for(&self, runs: &[Interrupted]) {
        for (what, noun, done, insist) in [
            (Interrupted::Ends, "run", "ended", "ends {it} at once"),
            (Interrupted::IsCancelled, "job", "cancelled", "leaves {it}"),
        ] {
            let count = runs.iter().filter(|run| **run == what).count();
            if count == 0 {
                continue;
            }
            let (is, it) = if count == 1 {
                ("is", "it")
            } else {
                ("are", "them")
            };
            self.say(format!(
                "interrupted: {} {is} being {done}; a second Ctrl-C {}",
                counted(count, noun),
                insist.replace("{it}", it)
            ));
        }
    }

    /// The runs whose logs nobody parses any more, because the build was stopped before.
    pub(super) fn say_what_is_unread(&mut self) {
        for (_, Unread { name, seconds }) in std::mem::take(&mut self.unread) {
            self.say_ended_well(name, seconds);
        }
    }

    /// Says of a run that ended well why it does not count.
    pub(super) fn say_not_counted(
        &self,
        cell: CellId,
        Unread { name, seconds }: Unread,
        why: &Reason,
        statuses: &Statuses,
    ) {
        let plan = self.engine.plan;
        let is_disturbed = why.is(SUSPECT);
        let class = failure_class(why);
        let what_to_do = match class {
            Some(class) if class.is_deterministic() => Some(advice_on(plan, cell, class)),
            // Its advice would be to build again, and a build keeps a run that ended well.
            Some(_) => Some(format!(
                "`{}` says more; `{}` measures the cell anew",
                plan.command("show", &[&plan.cells[cell].id]),
                plan.command(
                    "build",
                    &["--only", &plan.cells[cell].id, "--force=measured"]
                )
            )),
            None if is_disturbed => None,
            None if why.is(NO_STEP) => Some(self.how_to_read_its_log(cell, statuses)),
            None => Some(match taken_over(plan, why) {
                Some(set) => format!(
                    "let the trainer do as the job says, or take over what it does: `[[override]]`, `where = {{}}` and `{set}` as three \
                     lines at the end of the matrix"
                ),
                None => format!(
                    "`{}` says more; correct the configuration (`{}` then says whether it runs again) or, where the log is misread, \
                     how it is read (`log` in config.yaml, [log] in recipe.toml), which takes no new run",
                    plan.command("show", &[&plan.cells[cell].id]),
                    plan.command("build", &["-n"])
                ),
            }),
        };
        let mut evidence = vec![why.text.clone()];
        if self.holds_other_repeats(cell, statuses) {
            evidence.push(
                "its cell's other repeats would not count either and are not started; --force=failed runs them anyway"
                    .to_owned(),
            );
        }
        self.events.report(&Event::TaskFinished {
            task: name,
            outcome: Outcome::NotCounted,
            seconds,
            class,
            evidence,
            what_to_do,
        });
    }

    /// What makes a log readable in which no training step was found. The beginning of the log is
    /// looked through for a format that tprimat knows, or for lines that repeat.
    fn how_to_read_its_log(&self, cell: CellId, statuses: &Statuses) -> String {
        let (plan, cache) = (self.engine.plan, self.engine.cache);
        let recipe = &plan.recipe(cell).file;
        let train = |repeat| self.engine.dag.node(TaskKind::Train, cell, repeat);
        let attempt =
            (1..=plan.cells[cell].repeats).find_map(|repeat| statuses.get(train(repeat)).attempt());
        let log = attempt.and_then(|attempt| cache.reader(&attempt.log()?.digest).ok()?);
        let mut head = Vec::new();
        if let Some(log) = log {
            // What cannot be read says nothing.
            let _ = log.take(LOOKED_THROUGH).read_to_end(&mut head);
        }
        let id = &recipe.id;
        if recipe.launch.has_option(COMMAND) {
            let line = format!("frameworks.{id}.log");
            let so_far = match plan.config.get(&line) {
                Some(_) => format!("no line of the log is as `{line}` in config.yaml says"),
                None => {
                    "the log has no events, and tprimat knows no format with its lines".to_owned()
                }
            };
            let how = match logs::suggest(&logs::tail(&head)) {
                Some(found) if !found.has_rate => {
                    return format!(
                        "{so_far}. The lines that repeat have neither the time of a step nor tokens/s; let the trainer print one"
                    );
                }
                Some(found) => format!(
                    "`log: \"{}\"` below frameworks.{id} reads its lines",
                    found.pattern
                ),
                None => format!(
                    "`log: \"step <step> loss <loss> tokens/s <tokens_per_second>\"` below frameworks.{id} would read lines of that \
                     kind, and `tprimat logs {}#1` shows what it printed",
                    plan.cells[cell].id
                ),
            };
            return format!("{so_far}. {how}; that takes no new run");
        }
        let trace = logs::parse_any(&head);
        let own = recipe.log.format.as_str();
        let looks_like = (!trace.steps.is_empty() && trace.format != own).then_some(trace.format);
        let file = format!("recipes/{id}/recipe.toml");
        let place = if plan.root.join(&file).is_file() {
            file
        } else {
            format!(
                "{file}, which `{}` makes",
                plan.asked.of_project(&["recipe", "copy", id])
            )
        };
        let how = match looks_like {
            Some(format) => format!("the log looks like `{format}`: write `format = \"{format}\"`"),
            None => "tprimat knows no format with these lines: let the trainer print events (`tprimat print schema events`), or write \
                     `format = \"regex\"` with patterns"
                .to_owned(),
        };
        format!(
            "the recipe `{id}` reads its log as `{own}`. If it has steps, {how} below [log] in {place} (docs/recipes.md, \"Log \
             formats\"); that takes no new run"
        )
    }

    /// Are there repeats of a cell in the queue that will not be started?
    fn holds_other_repeats(&self, cell: CellId, statuses: &Statuses) -> bool {
        self.queued_of(cell).first().is_some_and(|train| {
            let status = self.engine.evaluate(train.node, statuses);
            status.is_ok_and(|status| status.state == State::Failed)
        })
    }
}

/// How many bytes of a log are looked through for its format. It is done by the thread that starts
/// the runs, which must not wait for a log of gigabytes.
const LOOKED_THROUGH: u64 = 1 << 20;

/// What a matrix sets to ask for what the trainer did, where settings alone contradict the job.
fn taken_over(plan: &Plan, why: &Reason) -> Option<String> {
    let stated = why.values.get("stated")?.as_object()?;
    let fields = why.values.get("fields")?.as_array()?;
    let paths: Vec<String> = plan.config.effective().map(|(path, ..)| path).collect();
    let set = |(field, value): (&String, &serde_json::Value)| {
        let end = format!(".{field}");
        let is_own = |path: &&String| path.starts_with("training.") && path.ends_with(&end);
        let path = paths.iter().find(is_own)?;
        // An override of what an axis or another one sets is refused.
        let mut cells = plan.matrix.cells.with_ids();
        let is_varied =
            cells.any(|(_, cell)| cell.overlay.iter().any(|setting| &*setting.path == path));
        (!is_varied).then(|| format!("\"{path}\" = {value}"))
    };
    let sets: Vec<String> = stated.iter().map(set).collect::<Option<_>>()?;
    (!sets.is_empty() && sets.len() == fields.len())
        .then(|| format!("set = {{ {} }}", sets.join(", ")))
}

/// What to do about a failure of this class, with the cell's own name in the commands.
fn advice_on(plan: &Plan, cell: CellId, class: FailureClass) -> String {
    report::advice(class, &plan.cells[cell].id, |name, words| {
        plan.command(name, words)
    })
}

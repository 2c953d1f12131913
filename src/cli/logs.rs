//! `logs CELL`: the log of the attempt that counts, or of any other, byte for byte; of a run that goes
//! on, what it has written so far, and `-f` follows it.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use super::{
    args::{Globals, LogsArgs},
    flags::is_matrix,
    output::{wait_while_read, write},
    project::{self, split_repeat},
    session::{Project, Session},
    show::attempts,
};
use crate::{
    cache::{Attempt, Cache, CacheError, TaskKind},
    digest::Digest,
    error::{Error, Result, exit},
    execute::{self, reading},
    graph::State,
    growing,
    import::{Imports, KeptRun, Kind},
    matrix::{CellId, Selection},
    plan::{Asked, Plan},
    run,
    secrets::Secrets,
};

pub fn run(globals: &Globals, args: &LogsArgs) -> Result<i32> {
    match (&args.attempt, &args.cell) {
        (Some(id), _) => of_attempt(globals, args, id),
        (None, Some(cell)) if !args.failed => of_cell(globals, args, cell),
        (None, None) if args.follow => of_the_one_that_runs(globals, args),
        (None, _) => of_failed(globals, args),
    }
}

/// The log of `CELL`, `CELL#2` or an import.
fn of_cell(globals: &Globals, args: &LogsArgs, asked: &str) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &args.measured)?;
    let Session { plan, cache, .. } = &session;
    let (id, only) = split_repeat(asked)?;
    let imports = Imports::of(cache);
    let imports = imports.named(id).map_or(&[][..], |cell| imports.kept(cell));
    let is_asked = |import: &&KeptRun| only.is_none_or(|only| only == import.number);
    let imports: Vec<&KeptRun> = imports.iter().filter(is_asked).collect();
    let (cell, repeat) = match plan.find(id).and_then(|cell| {
        project::require_planned(plan, cell, asked, only)?;
        Ok((cell, only.unwrap_or(1)))
    }) {
        Err(_) if !imports.is_empty() => {
            return of_imports(cache, &imports, args.tail, &plan.asked);
        }
        planned => planned?,
    };
    let (engine, statuses) = session.look()?;
    let status = statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
    let part = Part::of(args);
    // A run under this name that has other settings is not this cell's, whoever started it.
    let runs = cache.root().join("runs");
    let live = status.key.and_then(|key| execute::live_run(&runs, &key));
    let is_live = matches!(part, Part::Log) && (args.follow || status.state != State::Fresh);
    if let Some(dir) = live.as_ref().filter(|_| is_live) {
        if args.tail.is_some() {
            return Err(Error::refused(
                format!("`{asked}` goes on, and --tail is for a run that is over"),
                "leave it out; `| tail` shows the end of what there is so far",
            ));
        }
        return of_live(plan, cell, (repeat, asked), dir, args.follow);
    }
    // A failed attempt that will be tried again is not the one that counts, but its log is what
    // people ask for.
    let last = || cache.attempts(&status.key?).pop();
    let attempt = status.attempt().map(|a| (**a).clone()).or_else(last);
    if let Some(attempt) = &attempt {
        return match log_of(cache, &plan.asked, attempt, part)? {
            None if !imports.is_empty() => of_imports(cache, &imports, args.tail, &plan.asked),
            Some(log) if print_stored(cache, log, args.tail)?.is_some() => Ok(exit::OK),
            _ => Err(lost(attempt, part)),
        };
    }
    if !imports.is_empty() {
        return of_imports(cache, &imports, args.tail, &plan.asked);
    }
    let id = &plan.cells[cell].id;
    if let Some(error) = project::not_started(plan, asked, id, status) {
        return Err(error);
    }
    if live.is_some() {
        let (_, what) = part.named();
        return Err(Error::failed(format!(
            "`{id}#{repeat}` goes on; its {what} can be shown once it is over"
        )));
    }
    let help = match execute::live_run_of(&runs, &format!("train {id}#{repeat}")) {
        Some(_) => {
            "a run of it goes on that was started with other settings: give the options of its build here too (`--executor`, `--set`)"
                .to_owned()
        }
        None => format!(
            "`{}` lists every run of it; `{}` prints its log",
            plan.command("show", &[id, "--attempts"]),
            plan.command("logs", &["--attempt", "ID"])
        ),
    };
    Err(Error::failed_with(
        format!("there is no log of `{id}#{repeat}` as it is configured now"),
        help,
    ))
}

/// The log of a run that goes on.
fn of_live(
    plan: &Plan,
    cell: CellId,
    (repeat, asked): (u32, &str),
    dir: &Path,
    is_followed: bool,
) -> Result<i32> {
    let prepared = plan.prepared(cell);
    let declared = prepared.map(|prepared| prepared.resolved.env.clone());
    let declared = declared.unwrap_or_default();
    if is_followed {
        return follow(dir, &declared);
    }
    let follow = plan.command("logs", &["-f", asked]);
    let id = &plan.cells[cell].id;
    eprintln!("{id}#{repeat} goes on; `{follow}` follows it");
    so_far(dir, &declared)
}

/// Prints a file of the cache as it is read, however large it is, or the last `tail` lines of it; its
/// last byte, or 0 where it is empty. `None` where it is gone or damaged: that shows at its end only,
/// so it is read once before.
fn print_stored(cache: &Cache, digest: &Digest, tail: Option<usize>) -> Result<Option<u8>> {
    if !cache.is_sound(digest)? {
        return Ok(None);
    }
    let (mut last, mut end) = (0, Vec::new());
    let is_sound = cache.stream(digest, |bytes| {
        last = bytes.last().copied().unwrap_or(last);
        let Some(lines) = tail else {
            return write(bytes);
        };
        end.extend_from_slice(bytes);
        // The line end of the last line begins no other one.
        let mut ends = memchr::memrchr_iter(b'\n', &end).filter(|at| at + 1 < end.len());
        let before = ends.nth(lines.saturating_sub(1));
        let before = before.map_or(0, |at| at + 1);
        end.drain(..before);
        Ok(())
    })?;
    if tail != Some(0) {
        write(&end)?;
    }
    Ok(is_sound.then_some(last))
}

/// Between the logs of several runs.
fn write_gap(last: u8) -> Result<()> {
    write(if last == b'\n' { b"\n" } else { b"\n\n" })
}

/// What imported runs of a cell have as logs: one as it came, several each below its name.
fn of_imports(
    cache: &Cache,
    imports: &[&KeptRun],
    tail: Option<usize>,
    asked: &Asked,
) -> Result<i32> {
    let mut files = Vec::new();
    for one in imports.iter().filter(|one| one.recorded.kind == Kind::Log) {
        files.extend(
            one.recorded
                .sources
                .iter()
                .map(|source| (one.name(), source)),
        );
    }
    if files.is_empty() {
        let from: Vec<String> = imports.iter().map(|one| one.recorded.from()).collect();
        let name = match imports {
            [only] => only.name(),
            several => several
                .first()
                .map_or_else(String::new, |one| one.cell.clone()),
        };
        let (from, show) = (from.join(", "), asked.command("show", &[&name]));
        return Err(Error::failed_with(
            format!("`{name}` was imported from {from}, which is not a log"),
            format!("`{show}` shows what was read from it"),
        ));
    }
    for (name, source) in &files {
        if files.len() > 1 {
            write(format!("==> {name} (imported from {}) <==\n", source.name).as_bytes())?;
        }
        let last = print_stored(cache, &source.digest, tail)?.ok_or_else(|| CacheError::Gone {
            what: source.name.clone(),
            again: "import it again",
        })?;
        if files.len() > 1 {
            write_gap(last)?;
        }
    }
    Ok(exit::OK)
}

fn of_attempt(globals: &Globals, args: &LogsArgs, id: &str) -> Result<i32> {
    let project = Project::open(globals, &[])?;
    let cache = project.cache()?;
    let asked = Asked {
        matrix: args.common.matrix().cloned(),
        sets: args.common.sets.clone(),
        ..Asked::of(&project.request)
    };
    let part = Part::of(args);
    let attempt = attempts::find(&cache, &asked, id)?;
    match log_of(&cache, &asked, &attempt, part)? {
        Some(log) if print_stored(&cache, log, args.tail)?.is_some() => Ok(exit::OK),
        _ => Err(lost(&attempt, part)),
    }
}

/// `-f` without a cell: the log of the run that goes on, if it is the only one.
fn of_the_one_that_runs(globals: &Globals, args: &LogsArgs) -> Result<i32> {
    let project = Project::open(globals, &args.common.sets)?;
    let asked = Asked {
        matrix: args.common.matrix().cloned(),
        ..Asked::of(&project.request)
    };
    let running = execute::live_runs(&project.cache()?.root().join("runs"));
    let name = |task: &str| task.strip_prefix("train ").unwrap_or(task).to_owned();
    match &running[..] {
        [(task, dir)] => {
            eprintln!("following {}", name(task));
            // What its processes were given is asked of them.
            follow(dir, &BTreeMap::new())
        }
        [] => Err(Error::nothing(
            "no run goes on now",
            format!(
                "`{}` prints the log of one that is over",
                asked.command("logs", &["CELL"])
            ),
        )),
        several => {
            let names: Vec<String> = several.iter().map(|(task, _)| name(task)).collect();
            let first = asked.command("logs", &[&names[0], "-f"]);
            Err(Error::refused(
                format!("{} runs go on now: {}", names.len(), names.join(", ")),
                format!("name one: `{first}`"),
            ))
        }
    }
}

/// The logs of all failed runs, each below its name, as `tail` prints several files.
fn of_failed(globals: &Globals, args: &LogsArgs) -> Result<i32> {
    let mut request = project::request(globals, &args.common, None, &args.measured)?;
    // The one word that is there is a matrix, unless it is a cell of it.
    match &args.cell {
        Some(word) if request.matrix.is_none() && is_matrix(word) => {
            request.matrix = Some(word.clone());
        }
        Some(cell) => request.selection = Selection::of_cell(cell),
        None => {}
    }
    let mut session = Session::open(request)?;
    let uncounted = project::keep_failed(&mut session)?;
    let Session { plan, cache, .. } = &session;
    let past = reading::PastMeasurements::of(cache, plan);
    for (id, cell) in plan.cells.with_ids().filter(|(_, cell)| cell.selected) {
        let mut runs = project::last_failures(&past, cell);
        let of_cell = uncounted.iter().filter(|run| run.cell == id);
        runs.extend(of_cell.map(|run| (run.repeat, &*run.attempt)));
        runs.sort_by_key(|(repeat, _)| *repeat);
        for (repeat, attempt) in runs {
            write(format!("==> {}#{repeat} (attempt {}) <==\n", cell.id, attempt.id).as_bytes())?;
            let printed = match log_of(cache, &plan.asked, attempt, Part::Log)? {
                Some(log) => print_stored(cache, log, args.tail)?,
                None => None,
            };
            if printed.is_none() {
                write(format!("({})", lost(attempt, Part::Log)).as_bytes())?;
            }
            write_gap(printed.unwrap_or(0))?;
        }
    }
    Ok(exit::OK)
}

/// What is asked for of an attempt.
#[derive(Clone, Copy)]
enum Part {
    Log,
    /// The log of one node of several.
    Node(usize),
    Stacks,
}

impl Part {
    fn of(args: &LogsArgs) -> Self {
        match args.node {
            _ if args.stacks => Self::Stacks,
            0 => Self::Log,
            node => Self::Node(node),
        }
    }
}

impl Part {
    /// The file that has it, and what people call it.
    fn named(self) -> (String, String) {
        match self {
            Self::Log => ("log".to_owned(), "log".to_owned()),
            Self::Node(node) => (format!("log.node-{node}"), format!("log of node {node}")),
            Self::Stacks => (
                "stacks.txt".to_owned(),
                "stacks of its processes".to_owned(),
            ),
        }
    }
}

/// The file that is asked for, where the attempt has it and the cache as well.
fn log_of<'a>(
    cache: &Cache,
    asked: &Asked,
    attempt: &'a Attempt,
    part: Part,
) -> Result<Option<&'a Digest>> {
    let (name, what) = part.named();
    let Some(output) = attempt.outputs.iter().find(|output| output.name == name) else {
        return match part {
            Part::Log => Ok(None),
            _ => Err(Error::nothing(
                format!("attempt {} has no {what}", attempt.id),
                format!(
                    "`{}` prints its log",
                    asked.command("logs", &["--attempt", &attempt.id])
                ),
            )),
        };
    };
    Ok(Some(&output.digest).filter(|digest| cache.has(digest)))
}

/// Why a run's log is not printed: there is none, or it cannot be read any more.
fn lost(attempt: &Attempt, part: Part) -> Error {
    let run = attempt.task.strip_prefix("train ").unwrap_or(&attempt.task);
    let (name, _) = part.named();
    let (message, help) = match attempt.outputs.iter().any(|output| output.name == name) {
        false => (format!("attempt {} of {run} left no log", attempt.id), None),
        true => (
            format!(
                "`{name}` of {run} (attempt {}) {}",
                attempt.id,
                reading::GONE
            ),
            Some(reading::BRINGS_BACK.to_owned()),
        ),
    };
    Error::Failed { message, help }
}

/// The log itself is masked only once the run has ended, so what is shown before is masked here: by
/// the secrets of whoever asks, by those that are declared, and by those that the run was given.
/// Its processes know these in full, its folder by digests of their words, for a run of which no
/// process is left, or whose processes are a job's on another host. Nothing is shown before the
/// processes are asked, such a job has written something, or the run is over.
fn follow(dir: &Path, declared: &BTreeMap<String, String>) -> Result<i32> {
    let mut shown = Shown::of(dir, declared);
    loop {
        let is_over = execute::is_over(dir);
        shown.look(is_over)?;
        if is_over || !wait_while_read(Duration::from_millis(200)) {
            return Ok(exit::OK);
        }
    }
}

/// What the log has now, by the same rules.
fn so_far(dir: &Path, declared: &BTreeMap<String, String>) -> Result<i32> {
    let mut shown = Shown::of(dir, declared);
    // Between the folder of a run and its first process there is a moment.
    for _ in 0..10 {
        if shown.look(execute::is_over(dir))? || !wait_while_read(Duration::from_millis(200)) {
            return Ok(exit::OK);
        }
    }
    if !shown.has_log() {
        eprintln!("it has written nothing yet");
        return Ok(exit::OK);
    }
    Err(Error::failed_with(
        "this host has no process of the run, which would say what in its log is secret",
        "the log can be shown once the run is over",
    ))
}

/// How much of the log of a run that goes on was shown.
struct Shown<'a> {
    dir: &'a Path,
    log: growing::Growing,
    pending: Vec<u8>,
    secrets: Vec<Secrets>,
    is_known: bool,
}

impl<'a> Shown<'a> {
    fn of(dir: &'a Path, declared: &BTreeMap<String, String>) -> Self {
        Self {
            dir,
            log: growing::Growing::new(&dir.join("log")),
            pending: Vec::new(),
            secrets: vec![
                Secrets::of_caller(),
                Secrets::of(declared),
                Secrets::noted(dir),
            ],
            is_known: false,
        }
    }

    fn has_log(&self) -> bool {
        fs::metadata(self.dir.join("log")).is_ok_and(|log| log.len() > 0)
    }

    /// Is all known that may be known of the run's secrets?
    fn knows_secrets(&mut self) -> bool {
        if self.is_known {
            return true;
        }
        // Whoever has written something would be seen by now, were it here. Where it is not, the words
        // that the folder knows must be all there is to mask.
        let is_elsewhere =
            run::is_of_a_job(self.dir) && self.has_log() && Secrets::are_noted_whole(self.dir);
        let env = execute::environment_of(self.dir);
        self.is_known = env.is_some() || is_elsewhere;
        self.secrets.extend(env.as_ref().map(Secrets::of));
        self.is_known
    }

    /// Shows what is new; whether anything may be shown yet.
    fn look(&mut self, is_over: bool) -> Result<bool> {
        let may = self.knows_secrets() || is_over;
        if may {
            let pending = &mut self.pending;
            self.log
                .poll(&mut |bytes| pending.extend_from_slice(bytes))
                .map_err(Error::io("cannot read the log in", self.dir))?;
            let end = showable(pending, is_over, &self.secrets);
            write(&pending[..end])?;
            pending.drain(..end);
        }
        Ok(may)
    }
}

/// Masks what has come and says how much of it may be shown: whole lines, so that no secret is seen
/// in two halves. A progress bar ends its lines by a carriage return; a line without an end is
/// shown but for as much as may begin a secret.
fn showable(pending: &mut [u8], is_over: bool, secrets: &[Secrets]) -> usize {
    const LONGEST_LINE: usize = 64 << 10;
    let whole = pending
        .iter()
        .rposition(|byte| b"\n\r".contains(byte))
        .map_or(0, |last| last + 1);
    let end = if is_over || pending.len() - whole > LONGEST_LINE {
        pending.len()
    } else {
        whole
    };
    secrets
        .iter()
        .for_each(|secrets| secrets.mask(&mut pending[..end]));
    let held_back = secrets.iter().map(Secrets::longest).max().unwrap_or(0);
    if is_over || end == whole {
        end
    } else {
        whole.max(end.saturating_sub(held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn the_log_of_a_job_on_another_host_is_shown_once_it_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let write = |name: &str, text: &str| {
            files::write_atomically(&dir.join(name), text.as_bytes(), files::Durability::Plain)
                .unwrap();
        };
        let knows = || Shown::of(dir, &BTreeMap::new()).knows_secrets();
        assert!(!knows());
        write("log", "step 1\n");
        assert!(!knows(), "its processes are of this host");
        write("claim", "17");
        assert!(knows());
        write("log", "");
        assert!(!knows(), "its processes may be here, and begin only now");
        write("log", "step 1\n");
        for (secret, is_shown) in [("hf_0123456789", true), ("wJal/K7MD+bPxRfiCY", false)] {
            let env = [("A_TOKEN".to_owned(), secret.to_owned())].into();
            Secrets::note(&env, dir).unwrap();
            assert_eq!(knows(), is_shown, "{secret}");
        }
    }

    #[test]
    fn what_may_be_the_beginning_of_a_secret_is_held_back() {
        let secrets = [Secrets::of(
            &[("A_TOKEN".to_owned(), "abcdefghij".to_owned())].into(),
        )];
        let shown = |text: &str, is_over| {
            let mut pending = text.as_bytes().to_vec();
            let end = showable(&mut pending, is_over, &secrets);
            String::from_utf8(pending[..end].to_vec()).unwrap()
        };
        assert_eq!(
            shown("one abcdefghij\ntwo abcde", false),
            "one **********\n"
        );
        assert_eq!(shown("10%\rtwo", false), "10%\r");
        assert_eq!(shown("two abcdefghij", true), "two **********");
        let long = "x".repeat(70 << 10);
        let end = shown(&format!("{long}abcde"), false);
        assert!(end.len() == long.len() - 5 && !end.contains('a'));
    }
}

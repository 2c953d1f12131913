//! `import`: logs and results that others measured, stored as they are and shown beside ours,
//! labelled.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    args::{Globals, ImportArgs},
    attempts,
    flags::{Common, Measured},
    output::{leave_out, print, print_json},
    project, remote,
    session::Session,
};
use crate::{
    cache::{Cache, Remote},
    config,
    error::{Error, Problem, Result, did_you_mean, exit},
    files::Durability,
    import::{self, Guess, ImportedRun, Imports, KeptRun, Kind, Recorded, Source, Unit},
    job::FailureClass,
    logs,
    plan::{Plan, same_file},
    publish,
    results::Contract,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &ImportArgs) -> Result<i32> {
    let common = Common::of(args.matrix.clone(), Vec::new());
    let session = match project::without_project(globals, &common)? {
        Some(request) => Session::bare(request)?,
        None => Session::open(project::request(
            globals,
            &common,
            None,
            &Measured::default(),
        )?)?,
    };
    let Session { plan, cache, .. } = &session;
    let (caches, names): (Vec<&String>, Vec<&String>) = args
        .names
        .iter()
        .partition(|name| cache_in(plan, Path::new(name)).is_some());
    if !caches.is_empty() {
        if !names.is_empty()
            || !args.log.is_empty()
            || !args.result.is_empty()
            || !args.tfevents.is_empty()
        {
            let problem = Problem::new(format!(
                "`{}` is a cache of tprimat, and other things are named too",
                caches[0]
            ));
            return Err(Error::invalid(
                problem.help("import caches by a command of their own"),
            ));
        }
        return adopt(&session, &caches, globals.json);
    }
    // Older suites publish to the folder that is tprimat's now: what is left out is what tprimat
    // published, not the folder.
    let mut own = publish::published(&publish::output_root(plan));
    own.push(plan.cache_dir());
    let (cell, units, skipped) = wanted(args, &own)?;
    let cell = cell.map(|cell| canonical(plan, &cell));
    if plan.is_bare() {
        eprintln!(
            "note: there is no config.yaml here: models and platforms are the starter's, and imports are kept in {}",
            plan.cache_dir().display()
        );
    }
    if let Some(cell) = &cell {
        check_names(plan, cell);
    }
    cache.ensure_writable()?;
    let (published, strange): (Vec<_>, Vec<_>) = skipped
        .iter()
        .map(|path| path.display().to_string())
        .partition(|name| is_publication(name));
    left_out(&strange);
    let mut published = published.len();
    // In a folder a stranger is left out; a file that was named is a mistake.
    let lenient = units.len() > 1 || args.names.iter().any(|n| Path::new(n).is_dir());
    let (mut told, mut done) = (Vec::new(), 0);
    // A file of ours is a measurement of somebody's, and nobody may lose it in a list of strangers.
    let mut broken = Vec::new();
    let mut known = Known::default();
    for unit in units {
        let into = Into {
            cell: cell.as_deref(),
            other_platform: args.other_platform,
        };
        match one(plan, cache, into, &unit, &mut known) {
            Ok(runs) => {
                done += 1;
                for run in runs {
                    if !globals.json {
                        print(&run.text)?;
                    }
                    told.push(run.json);
                }
            }
            Err(Error::Invalid(_)) if lenient && is_publication(&unit.name) => published += 1,
            Err(Error::Invalid(problems)) if lenient && import::is_ours(&unit) => {
                broken.extend(problems)
            }
            Err(Error::Invalid(problems)) if lenient => {
                // Each names the file.
                for problem in problems {
                    eprintln!("note: left out: {}", problem.message);
                }
            }
            Err(other) => return Err(other),
        }
    }
    if published > 0 {
        eprintln!(
            "note: {} that tprimat publishes beside results, left out",
            counted(published, "file")
        );
    }
    if !broken.is_empty() {
        return Err(Error::Invalid(broken));
    }
    if done == 0 {
        return Err(Error::invalid(
            Problem::new("nothing was imported").help(expected()),
        ));
    }
    if globals.json {
        print_json("imported", &json!({ "imported": told }))?;
    } else {
        // Beside cells that were measured here, imports are shown by themselves.
        let words: &[&str] = if plan.is_bare() { &[] } else { &["--imported"] };
        eprintln!(
            "`{}` compares what was imported",
            plan.command("compare", words)
        );
    }
    Ok(exit::OK)
}

/// Tables, pictures, pages and locks that a report leaves beside its results.
fn is_publication(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    matches!(name, "tprimat.lock" | "report.html")
        || matches!(stem, "compare" | "compare_repeats" | "curves")
}

/// One line for all files of folders that are neither logs nor results.
fn left_out(names: &[String]) {
    match names {
        [] => {}
        [one] => eprintln!("note: {one} is neither a log nor a result; it is left out"),
        many => eprintln!(
            "note: {} are neither logs nor results and are left out: {}",
            counted(many.len(), "file"),
            super::blocked::few(&many.iter().map(String::as_str).collect::<Vec<_>>())
        ),
    }
}

/// The cache that a path means: itself, or that of another project in it. This project's folder is
/// one of logs and results.
fn cache_in(plan: &Plan, path: &Path) -> Option<PathBuf> {
    let of_project = path.join("cache");
    if project::is_cache(path) {
        return Some(path.to_owned());
    }
    let is_own = same_file(&of_project, &plan.cache_dir());
    (path.join("config.yaml").is_file() && project::is_cache(&of_project) && !is_own)
        .then_some(of_project)
}

/// Takes over what other caches hold: every run with its log and result, and what was imported
/// there.
fn adopt(session: &Session, names: &[&String], as_json: bool) -> Result<i32> {
    let Session { plan, cache, .. } = session;
    cache.ensure_writable()?;
    let (mut told, mut refused) = (Vec::new(), false);
    for name in names {
        let Some(folder) = cache_in(plan, Path::new(name)) else {
            continue;
        };
        if same_file(&folder, cache.root()) {
            let problem = Problem::new(format!("{} is this project's own cache", folder.display()));
            return Err(Error::invalid(
                problem.help("name another project's folder, or its cache"),
            ));
        }
        // It is refused where somebody else controls it.
        let other = Remote::of_cache(Cache::open(&folder)?.root());
        let pulled = other.pull(cache, &other.list(None)?, &|_, _| Ok(()))?;
        if !as_json {
            print(&format!(
                "{}: new here: {}\n",
                folder.display(),
                remote::counts(&pulled.counts)
            ))?;
        }
        for refused in &pulled.refused {
            eprintln!("note: {}: left out: {refused}", folder.display());
        }
        refused |= !pulled.refused.is_empty();
        told.push(json!({
            "cache": folder, "new": pulled.counts, "objects": pulled.objects, "refused": pulled.refused,
        }));
        if let Some(cut) = pulled.cut {
            return Err(cut);
        }
    }
    if as_json {
        print_json("adopted", &json!({ "adopted": told }))?;
    } else {
        eprintln!("{}", after_adoption(session));
    }
    Ok(if refused { exit::FAILED } else { exit::OK })
}

/// What to do with what was taken over. Runs are of cells, which only a configuration has.
fn after_adoption(Session { plan, cache, .. }: &Session) -> String {
    let compare = plan.command("compare", &[]);
    if !plan.is_bare() {
        let plan = plan.command("plan", &[]);
        return format!("`{plan}` shows which cells they measure; `{compare}` compares them");
    }
    let here = "there is no config.yaml here: with that of the runs' project, its matrices and its recipes copied to this folder, \
                `tprimat plan` shows which cells they measure";
    match Imports::of(cache).cells().next().is_none() {
        true => here.to_owned(),
        false => format!("{here}; `{compare}` compares the imports"),
    }
}

/// A cell's name with the ids that this project uses, where another name of a platform or a
/// framework was given.
fn canonical(plan: &Plan, cell: &str) -> String {
    let mut parts: Vec<&str> = cell.splitn(3, '/').collect();
    if let [platform, framework, _] = &mut parts[..] {
        if let [id] = plan.config.platforms_named(platform)[..] {
            *platform = id;
        }
        *framework = config::framework_named(framework).unwrap_or(framework);
    }
    parts.join("/")
}

fn expected() -> String {
    let formats: Vec<_> = logs::names().collect();
    format!(
        "expected a log ({}), a TensorBoard event file, or a result: {}",
        formats.join(", "),
        import::EXPECTED
    )
}

/// The cell, where it is named, and the runs.
fn wanted(args: &ImportArgs, own: &[PathBuf]) -> Result<(Option<String>, Vec<Unit>, Vec<PathBuf>)> {
    let named = |kind: Kind, files: &[PathBuf]| Unit {
        kind,
        name: files
            .first()
            .and_then(|f| f.file_name())
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        files: files.to_vec(),
    };
    let mut units = Vec::new();
    if !args.log.is_empty() {
        // Several logs are the ranks of one run.
        units.push(named(Kind::Log, &args.log));
    }
    let single = [(Kind::Result, &args.result), (Kind::Events, &args.tfevents)];
    units.extend(
        single
            .into_iter()
            .flat_map(|(kind, files)| files.iter().map(move |f| (kind, f)))
            .map(|(kind, file)| named(kind, std::slice::from_ref(file))),
    );
    if units.is_empty() {
        if let [one, ..] = &args.names[..]
            && import::is_id(one)
            && !Path::new(one).exists()
        {
            let problem = Problem::new(format!("`{one}` names a cell, but no file to import"));
            return Err(Error::invalid(
                problem.help("give --log FILE, --result FILE or --tfevents FILE"),
            ));
        }
        if args.names.is_empty() {
            let problem = Problem::new("nothing to import is named");
            return Err(Error::invalid(problem.help(
                "`tprimat import CELL --log FILE`, or `tprimat import FOLDER`",
            )));
        }
        let mut skipped = Vec::new();
        let paths: Vec<PathBuf> = args.names.iter().map(PathBuf::from).collect();
        return Ok((None, import::gather(&paths, own, &mut skipped)?, skipped));
    }
    match &args.names[..] {
        [] => Ok((None, units, Vec::new())),
        [cell] if import::is_id(cell) => Ok((Some(cell.clone()), units, Vec::new())),
        [other, ..] => {
            let problem = Problem::new(format!("`{other}` is not a cell"));
            Err(Error::invalid(problem.help(
                "platform/framework/model/parallelism, as `tprimat list` names them",
            )))
        }
    }
}

/// A name that config.yaml does not know still makes a cell, but its model claims nothing.
fn check_names(plan: &Plan, cell: &str) {
    let parts: Vec<&str> = cell.split(['/', '@']).collect();
    for (table, name) in [("hardware.platforms", parts[0]), ("models", parts[2])] {
        if !plan.config.children(table).any(|known| known == name) {
            let near = did_you_mean(name, plan.config.children(table));
            let hint = near.map_or_else(String::new, |near| format!("; {near}"));
            eprintln!("note: config.yaml has no `{table}.{name}`: nothing is claimed by it{hint}");
        }
    }
}

/// What an import shows of its configuration.
struct Shown {
    id: String,
    /// Its file, where it is one file.
    name: Option<String>,
    format: String,
    device: Option<String>,
    contract: Contract,
}

impl Shown {
    fn of(run: &ImportedRun) -> Self {
        let trace = &run.result.trace;
        Self {
            id: run.recorded.id(),
            name: (run.recorded.sources.len() == 1).then(|| run.recorded.from()),
            format: trace.format.clone(),
            device: trace.device.as_ref().and_then(|d| d.name.clone()),
            contract: run.result.contract.clone(),
        }
    }

    /// Is it the same configuration, run once more? Its file is called the same but for a date or a
    /// number, and nothing in it says otherwise. Files of one and the same name are of several
    /// folders, which may be anybody's.
    fn is_repeat_of(&self, other: &Self) -> bool {
        let names = |shown: &Self| {
            shown
                .name
                .as_deref()
                .map(|name| (name.to_owned(), import::configuration(name)))
        };
        let (Some((own, configuration)), Some((its, of_other))) = (names(self), names(other))
        else {
            return false;
        };
        own != its
            && configuration == of_other
            && (&self.format, &self.device) == (&other.format, &other.device)
            && import::other_workload(&self.contract, &other.contract).is_none()
    }
}

/// The imports of each cell that was asked for: a folder may have thousands of one cell, and each
/// is read once.
#[derive(Default)]
struct Known(BTreeMap<String, Vec<Shown>>);

impl Known {
    fn of(
        &mut self,
        plan: &Plan,
        cache: &Cache,
        imports: &Imports,
        cell: &str,
    ) -> Result<&[Shown]> {
        if !self.0.contains_key(cell) {
            let runs = import::runs(
                cache,
                imports,
                cell,
                &import::claim_for(plan, cell),
                leave_out,
            )?;
            self.0
                .insert(cell.to_owned(), runs.iter().map(Shown::of).collect());
        }
        Ok(&self.0[cell])
    }

    /// The cell must have been asked for before.
    fn add(&mut self, cell: &str, shown: Shown) {
        let known = self.0.entry(cell.to_owned()).or_default();
        if known.iter().all(|k| k.id != shown.id) {
            known.push(shown);
        }
    }
}

/// The cell of a run that nobody named: that of earlier runs of the same configuration, which it
/// repeats; else what its name and content tell; where another configuration has that cell, one
/// that is named after the file.
fn cell_of(
    plan: &Plan,
    cache: &Cache,
    imports: &Imports,
    unit: &Unit,
    mut guess: Guess,
    shown: &Shown,
    known: &mut Known,
) -> Result<String> {
    let plain = guess.cell();
    let base = |cell: &str| cell.split('@').next().unwrap_or_default().to_owned();
    let near: Vec<&str> = imports
        .cells()
        .filter(|cell| base(cell) == base(&plain))
        .collect();
    let is_same_file: fn(&Shown, &Shown) -> bool = |a, b| a.id == b.id;
    for is_it in [is_same_file, Shown::is_repeat_of] {
        for cell in &near {
            let runs = known.of(plan, cache, imports, cell)?;
            if runs.iter().any(|run| is_it(shown, run)) {
                return Ok((*cell).to_owned());
            }
        }
    }
    let mut cell = plain;
    // Named after its file, the run is a cell of its own.
    let word: String = import::stem(&unit.name)
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '-' })
        .collect();
    let mut number = 1;
    while near.contains(&&*cell) {
        guess.rest = vec![word.trim_matches('-').to_owned()];
        guess.rest.extend((number > 1).then(|| number.to_string()));
        (cell, number) = (guess.cell(), number + 1);
    }
    // Whoever comes next asks for it.
    known.of(plan, cache, imports, &cell)?;
    Ok(cell)
}

/// Why a file is refused that is nothing tprimat reads.
fn neither(plan: &Plan, cell: Option<&str>, unit: &Unit) -> Error {
    let problem = Problem::new(format!("{}: neither a log nor a result", unit.name));
    let help = if unit.name.ends_with(".tar.zst") {
        "`tprimat cache import` takes in what `tprimat cache export` wrote".to_owned()
    } else {
        expected() + &by_patterns(plan, cell)
    };
    Error::invalid(problem.help(help))
}

/// What to do about a log that only a recipe's patterns may read.
fn by_patterns(plan: &Plan, cell: Option<&str>) -> String {
    let recipes = plan.recipes.recipes.iter();
    let mut with_patterns = recipes
        .filter(|(_, recipe)| recipe.file.log.is_of_patterns())
        .map(|(id, _)| id.as_str());
    let of_cell = cell.and_then(|cell| cell.split('/').nth(1));
    match (
        with_patterns.clone().find(|id| Some(*id) == of_cell),
        with_patterns.next(),
    ) {
        (Some(id), _) => {
            format!("; the `[log] patterns` of the recipe `{id}` find no step in it either")
        }
        (None, Some(id)) => format!(
            "; a log that the `[log] patterns` of `{id}` read is imported into a cell of that framework: `tprimat import CELL --log FILE`"
        ),
        (None, None) => String::new(),
    }
}

/// Where a run goes that somebody imports.
#[derive(Clone, Copy)]
struct Into<'a> {
    /// The cell that was named.
    cell: Option<&'a str>,
    /// A file of another vendor is no slip.
    other_platform: bool,
}

/// A run that was filed: for people, and for `--json`.
struct Filed {
    text: String,
    json: Value,
}

/// How the recipe of the cell that was named reads these logs, where that is by patterns of its own
/// and they fit.
fn own_format<'a>(
    plan: &'a Plan,
    into: Into<'_>,
    unit: &Unit,
) -> Result<Option<&'a logs::LogSection>> {
    let framework = into.cell.and_then(|cell| cell.split('/').nth(1));
    let recipe = framework.and_then(|framework| plan.recipes.recipes.get(framework));
    match recipe.map(|recipe| &recipe.file.log) {
        Some(log) if log.is_of_patterns() && import::reads(log, unit)? => Ok(Some(log)),
        _ => Ok(None),
    }
}

/// Stores a file, or the files of one run, as they are, if they can be read; then reads and files
/// each run in them.
fn one(
    plan: &Plan,
    cache: &Cache,
    into: Into<'_>,
    unit: &Unit,
    known: &mut Known,
) -> Result<Vec<Filed>> {
    let log = own_format(plan, into, unit)?;
    if log.is_none() && !import::recognise(unit)? {
        return Err(neither(plan, into.cell, unit));
    }
    import::check_one_run(unit, log)?;
    let mut sources = Vec::new();
    for path in &unit.files {
        let (digest, size) = cache.put_file(path, Durability::Synced)?;
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        sources.push(Source { name, digest, size });
    }
    let recorded = Recorded {
        log: log.cloned(),
        ..Recorded::new(unit.kind, sources)
    };
    let (runs, own_cell) = import::parts(cache, recorded)?;
    let into = Into {
        cell: into.cell.or(own_cell.as_deref()),
        ..into
    };
    runs.into_iter()
        .map(|run| filed(plan, cache, into, unit, run, known))
        .collect()
}

/// Reads one run and files it under its cell.
fn filed(
    plan: &Plan,
    cache: &Cache,
    Into {
        cell,
        other_platform,
    }: Into<'_>,
    unit: &Unit,
    recorded: Recorded,
    known: &mut Known,
) -> Result<Filed> {
    let recorded = Recorded {
        is_guessed: cell.is_none(),
        ..recorded
    };
    let mut guess = import::guess(&unit.name, &plan.config);
    if cell.is_none() {
        guess.or(import::content_guess(cache, &recorded, &plan.config)?);
    }
    let claims = import::claim_for(plan, cell.unwrap_or_default());
    let read =
        |cell: &str| ImportedRun::read(cache, 1, recorded.clone(), &import::claim_for(plan, cell));
    let first = cell.map_or_else(|| guess.cell(), str::to_owned);
    let mut run = read(&first)?;
    if !run.result.trace.telemetry.is_empty() && run.result.trace.steps.is_empty() {
        let message = format!(
            "{}: it has readings of devices and no training steps",
            unit.name
        );
        return Err(Error::invalid(
            Problem::new(message).help("`tprimat parse` shows them"),
        ));
    }
    let failure = run.result.trace.failure.as_ref();
    if run.result.trace.format == "unknown"
        && failure.is_none_or(|f| f.class == FailureClass::Unknown)
    {
        return Err(neither(plan, cell, unit));
    }
    let imports = Imports::of(cache);
    let cell = match cell {
        Some(cell) => {
            if !other_platform && let Some(differs) = &run.other_platform {
                let message = format!("{} is not imported into `{cell}`: {differs}", unit.name);
                let help = "name a cell of that platform; --other-platform imports it anyway, without a rate";
                return Err(Error::invalid(Problem::new(message).help(help)));
            }
            let others = known.of(plan, cache, &imports, cell)?;
            let others = others.iter().filter(|other| other.id != recorded.id());
            attempts::refuse_other_workload(
                &plan.asked,
                cell,
                &run.result.contract,
                others.map(|other| &other.contract),
                &format!("name another cell, as `{cell}@file=…`, or take back what it holds"),
            )?;
            cell.to_owned()
        }
        None => cell_of(plan, cache, &imports, unit, guess, &Shown::of(&run), known)?,
    };
    if cell != first {
        run = read(&cell)?;
    }
    known.add(&cell, Shown::of(&run));
    debug_assert!(config::is_plain_name(
        cell.split('/').next().unwrap_or_default()
    ));
    let elsewhere = imports.elsewhere(&cell, &recorded);
    let (n, known) = Imports::add(cache, &cell, &recorded)?;
    run.number = n;
    let mut text = import::brief(&cell, &run, &claims.statistics);
    if known {
        text += "  imported before: the same bytes are one run\n";
    }
    let elsewhere = elsewhere.map(KeptRun::name);
    if let Some(other) = &elsewhere {
        text += &format!(
            "  the same bytes are imported as {other} too; `tprimat attempts set-aside {other} --reason TEXT` takes \
             that one back\n"
        );
    }
    let kept = Imports::of(cache);
    if let Some((_, why)) = kept.set_aside_of(&cell).find(|(number, _)| *number == n) {
        text += &format!(
            "  it does not count, for it was set aside ({}); `tprimat attempts restore {cell}#{n}` lets it count\n",
            why.reason
        );
    }
    let json = json!({
        "cell": cell,
        "repeat": n,
        "known": known,
        "same_bytes_as": elsewhere,
        "kind": recorded.kind,
        "sources": recorded.sources,
        "format": run.result.trace.format,
        "outcome": run.result.outcome,
        "attestation": run.result.attestation.status,
    });
    Ok(Filed { text, json })
}

//! `import`: logs and results that others measured, stored as they are and shown beside ours,
//! labelled.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    args::{Globals, ImportArgs},
    blocked,
    flags::{Common, Measured},
    output::{leave_out, print, print_json},
    project,
    session::Session,
    set_aside::refuse_other_workload,
};
use crate::{
    cache::Cache,
    error::{Error, Result, did_you_mean, exit},
    execute::reading,
    files::Durability,
    import::{
        self, Claims, Facts, Guess, ImportedRun, Imports, KeptRun, Kind, Recorded, Source, Unit,
    },
    logs,
    plan::{Plan, same_file},
    publish,
    results::Contract,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &ImportArgs) -> Result<i32> {
    imported(globals, args)?;
    Ok(exit::OK)
}

/// The cells that what is named was filed under.
pub fn imported(globals: &Globals, args: &ImportArgs) -> Result<BTreeSet<String>> {
    let common = Common::of(args.matrix.clone(), Vec::new());
    let session = match project::without_project(globals, &common)? {
        Some(request) => Session::bare(request)?,
        None => {
            let request = project::request(globals, &common, None, &Measured::default())?;
            let opened = Session::open(request.clone());
            opened.or_else(|error| Session::without_implied(request).ok_or(error))?
        }
    };
    let Session { plan, cache, .. } = &session;
    let mut names = args.names.iter().map(Path::new);
    if let Some(other) = names.find_map(|name| cache_in(plan, name)) {
        let place = other.canonicalize().unwrap_or_else(|_| other.clone());
        let address = format!("file://{}", place.display());
        let pull = ["cache", "pull", "--remote", &address];
        let pull = plan.asked.of_project(&pull);
        return refused(
            format!("`{}` is a cache of tprimat, not a result", other.display()),
            &format!("`{pull}` takes over its runs and imports"),
        );
    }
    let facts = import::facts(&args.facts)?;
    let (cell, units, skipped) = wanted(plan, args)?;
    if is_without_config(plan) {
        eprintln!(
            "note: there is no config.yaml here: models and platforms are the starter's, and imports are kept in {}",
            plan.cache_dir().display()
        );
    }
    cache.ensure_writable()?;
    let _in_use = cache.use_it();
    let (odd, skipped): (Vec<_>, Vec<_>) = skipped
        .into_iter()
        .map(|path| (import::why_not_read(&path), path))
        .partition(|(why, _)| why.is_some());
    for (why, path) in &odd {
        let why = why.as_deref().unwrap_or_default();
        eprintln!("note: left out: {}: {why}", path.display());
    }
    if !skipped.is_empty() {
        let names: Vec<String> = skipped
            .iter()
            .map(|(_, path)| path.display().to_string())
            .collect();
        eprintln!(
            "note: {} left out as neither logs nor results: {}",
            counted(names.len(), "file"),
            blocked::few(&names.iter().map(String::as_str).collect::<Vec<_>>())
        );
    }
    // In a folder a stranger is left out; a file that was named is a mistake.
    let lenient = units.len() > 1 || args.names.iter().any(|n| Path::new(n).is_dir());
    let mut told = Vec::new();
    let mut cells = BTreeSet::new();
    // A file of ours is a measurement of somebody's, and nobody may lose it in a list of strangers.
    let mut broken = Vec::new();
    let mut import = Import {
        plan,
        cache,
        other_platform: args.other_platform,
        facts,
        known: BTreeMap::new(),
    };
    for unit in units {
        match import.unit(cell.as_deref(), &unit) {
            Ok(runs) => {
                for (cell, text, json) in runs {
                    cells.insert(cell);
                    if !globals.json {
                        print(&text)?;
                    }
                    told.push(json);
                }
            }
            Err(Error::Invalid(problems)) if lenient && import::is_ours(&unit) => {
                broken.extend(problems);
            }
            // Each names the file.
            Err(Error::Invalid(problems)) if lenient => problems
                .iter()
                .for_each(|problem| eprintln!("note: left out: {}", problem.message)),
            Err(other) => return Err(other),
        }
    }
    if !broken.is_empty() {
        return Err(Error::Invalid(broken));
    }
    if told.is_empty() {
        return refused("nothing was imported".to_owned(), &expected());
    }
    if globals.json {
        print_json("imported", &json!({ "imported": told }))?;
    } else {
        // Beside cells that were measured here, imports are shown by themselves.
        let compare = match plan.is_bare() {
            true => plan.command("compare", &[]),
            false => plan.asked.of_project(&["compare", "--imported"]),
        };
        eprintln!("`{compare}` compares what was imported");
    }
    Ok(cells)
}

fn is_without_config(plan: &Plan) -> bool {
    !plan.root.join("config.yaml").is_file()
}

fn refused<T>(message: String, help: &str) -> Result<T> {
    Err(Error::refused(message, help))
}

fn expected() -> String {
    let formats: Vec<_> = logs::names().collect();
    format!(
        "expected a log ({}), a TensorBoard event file, or a result: {}",
        formats.join(", "),
        import::EXPECTED
    )
}

/// The cache that a folder is, or that it has as another project. This project's folder is one of
/// logs and results.
fn cache_in(plan: &Plan, path: &Path) -> Option<PathBuf> {
    if project::is_cache(path) {
        return Some(path.to_owned());
    }
    let of_project = path.join("cache");
    let is_own = same_file(&of_project, &plan.cache_dir());
    (path.join("config.yaml").is_file() && project::is_cache(&of_project) && !is_own)
        .then_some(of_project)
}

/// The cell, where it is named, the runs, and the files of folders that are none.
fn wanted(plan: &Plan, args: &ImportArgs) -> Result<(Option<String>, Vec<Unit>, Vec<PathBuf>)> {
    let mut units = Vec::new();
    if !args.log.is_empty() {
        // Several logs are the ranks of one run.
        units.push(Unit::of(Kind::Log, args.log.clone()));
    }
    for (kind, files) in [(Kind::Result, &args.result), (Kind::Events, &args.tfevents)] {
        units.extend(files.iter().map(|file| Unit::of(kind, vec![file.clone()])));
    }
    match &args.names[..] {
        [] if units.is_empty() => refused(
            "nothing to import is named".to_owned(),
            "`tprimat import CELL --log FILE`, or `tprimat import FOLDER`",
        ),
        [] => Ok((None, units, Vec::new())),
        [cell] if !units.is_empty() && import::is_id(cell) => {
            let cell = import::canonical(cell, &plan.config);
            check_names(plan, &cell);
            Ok((Some(cell), units, Vec::new()))
        }
        [other, ..] if !units.is_empty() => refused(
            format!("`{other}` is not a cell"),
            "platform/framework/model/parallelism, as `tprimat list` names them",
        ),
        [cell, ..] if import::is_id(cell) && !Path::new(cell).exists() => refused(
            format!("`{cell}` names a cell, but no file to import"),
            "give --log FILE, --result FILE or --tfevents FILE",
        ),
        names => {
            // Older suites publish to the folder that is tprimat's now: what is left out is what tprimat
            // published, not the folder.
            let mut own = publish::published(&publish::output_root(plan));
            own.push(plan.cache_dir());
            let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            let (units, skipped) = import::gather(&paths, &own)?;
            Ok((None, units, skipped))
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
    /// Its file, where it is one file, and what that is called but for a date or a number.
    name: Option<(String, String)>,
    /// Its format and its device.
    made: (String, Option<String>),
    contract: Contract,
}

impl Shown {
    fn of(run: &ImportedRun) -> Self {
        let trace = &run.result.trace;
        let device = trace.device.as_ref().and_then(|d| d.name.clone());
        let from = run.recorded.from();
        let is_one = run.recorded.sources.len() == 1;
        Self {
            id: run.recorded.id(),
            name: is_one.then(|| (import::configuration(&from), from)),
            made: (trace.format.clone(), device),
            contract: run.result.contract.clone(),
        }
    }

    /// Is it the same configuration, run once more? Its file is called the same but for a date or a
    /// number, and nothing in it says otherwise. Files of one and the same name are of several
    /// folders, which may be anybody's.
    fn is_repeat_of(&self, other: &Self) -> bool {
        let (Some((own, file)), Some((its, of_other))) = (&self.name, &other.name) else {
            return false;
        };
        let is_other_work = || import::other_workload(&self.contract, &other.contract).is_some();
        own == its && file != of_other && self.made == other.made && !is_other_work()
    }
}

/// Runs that somebody imports.
struct Import<'a> {
    plan: &'a Plan,
    cache: &'a Cache,
    /// A file of another vendor is no slip.
    other_platform: bool,
    facts: Facts,
    /// The imports of each cell that was asked for: a folder may have thousands of one cell, and each
    /// is read once.
    known: BTreeMap<String, Vec<Shown>>,
}

impl Import<'_> {
    fn known(&mut self, imports: &Imports, cell: &str) -> Result<&mut Vec<Shown>> {
        if !self.known.contains_key(cell) {
            let claims = import::claim_for(self.plan, cell);
            let runs = import::runs(self.cache, imports, cell, &claims, leave_out)?;
            let shown = runs.iter().map(Shown::of).collect();
            self.known.insert(cell.to_owned(), shown);
        }
        Ok(self.known.entry(cell.to_owned()).or_default())
    }

    /// Stores a file, or the files of one run, as they are, if they can be read; then reads and files
    /// each run in them. Cell, text and JSON of each.
    fn unit(&mut self, cell: Option<&str>, unit: &Unit) -> Result<Vec<(String, String, Value)>> {
        let recipes = &self.plan.recipes.recipes;
        let framework = cell.and_then(|cell| cell.split('/').nth(1));
        let log = framework.and_then(|framework| Some(&recipes.get(framework)?.file.log));
        // Logs are read by the patterns of their recipe where these fit.
        let log = match log {
            Some(log) if log.is_of_patterns() && import::reads(log, unit)? => Some(log),
            _ => None,
        };
        if log.is_none() && !import::recognise(unit)? {
            return self.neither(framework, unit);
        }
        import::check_one_run(unit, log)?;
        let mut sources = Vec::new();
        for path in &unit.files {
            let (digest, size) = self.cache.put_file(path, Durability::Synced)?;
            let name = import::file_name(path);
            sources.push(Source { name, digest, size });
        }
        let recorded = Recorded {
            log: log.cloned(),
            ..Recorded::new(unit.kind, sources)
        };
        let (runs, own_cell) = import::parts(self.cache, recorded)?;
        let cell = cell.or(own_cell.as_deref());
        let runs = runs.into_iter();
        runs.map(|run| self.file(cell, unit, run)).collect()
    }

    /// Why a file is refused that is nothing tprimat reads.
    fn neither<T>(&self, framework: Option<&str>, unit: &Unit) -> Result<T> {
        let mut readers = Vec::new();
        for (id, recipe) in &self.plan.recipes.recipes {
            let log = &recipe.file.log;
            if log.is_of_patterns() && import::reads(log, unit)? {
                readers.push(id.as_str());
            }
        }
        let message = format!("{}: neither a log nor a result", unit.name);
        if let ([reader, ..], None) = (&readers[..], framework) {
            let file = unit.files.first().map(|file| file.display().to_string());
            let words = ["CELL", "--log", file.as_deref().unwrap_or_default()];
            let command = self.plan.command("import", &words);
            return refused(
                format!("{message} by itself, but the log lines of `{reader}` read it"),
                &format!("name a cell of that framework: `{command}`"),
            );
        }
        let why = unit
            .files
            .iter()
            .find_map(|path| import::why_not_read(path));
        if let Some(why) = why {
            return refused(format!("{}: {why}", unit.name), &expected());
        }
        let hint = match framework {
            _ if unit.name.ends_with(".tar.zst") => {
                "; `tprimat cache import` takes in what `tprimat cache export` wrote".to_owned()
            }
            Some(own) if self.is_of_patterns(own) => {
                format!("; the log lines of `{own}` find no step in it either")
            }
            _ => String::new(),
        };
        refused(message, &(expected() + &hint))
    }

    fn is_of_patterns(&self, framework: &str) -> bool {
        let recipe = self.plan.recipes.recipes.get(framework);
        recipe.is_some_and(|recipe| recipe.file.log.is_of_patterns())
    }

    /// Reads one run and files it under its cell.
    fn file(
        &mut self,
        cell: Option<&str>,
        unit: &Unit,
        run: Recorded,
    ) -> Result<(String, String, Value)> {
        let (plan, cache) = (self.plan, self.cache);
        let recorded = Recorded {
            is_guessed: cell.is_none(),
            facts: self.facts.clone(),
            ..run
        };
        let old = import::read(cache, &recorded)?;
        if !old.trace.telemetry.is_empty() && old.trace.steps.is_empty() {
            return refused(
                format!(
                    "{}: it has readings of devices and no training steps",
                    unit.name
                ),
                "`tprimat parse` shows them",
            );
        }
        let mut guess = import::guess(&unit.name, &plan.config);
        guess.or(import::content_guess(&old, recorded.kind, &plan.config));
        let judged = |cell: &str| {
            let claims = import::claim_for(plan, cell);
            let run = ImportedRun::judge(old.clone(), 1, recorded.clone(), &claims);
            (run, claims)
        };
        let imports = Imports::of(cache);
        let cell = match cell {
            Some(cell) => {
                let (run, _) = judged(cell);
                self.check(&imports, cell, unit, &run)?;
                cell.to_owned()
            }
            None => {
                let (run, _) = judged(&guess.cell());
                self.cell_of(&imports, unit, guess, &Shown::of(&run))?
            }
        };
        let (mut run, claims) = judged(&cell);
        self.refuse_contradicted(&unit.name, &run, &claims)?;
        let known = self.known(&imports, &cell)?;
        if known.iter().all(|known| known.id != recorded.id()) {
            known.push(Shown::of(&run));
        }
        let elsewhere = imports.elsewhere(&cell, &recorded).map(KeptRun::name);
        let (number, is_known) = Imports::add(cache, &cell, &recorded)?;
        run.number = number;
        let mut text = import::brief(&cell, &run, &claims.statistics);
        if is_known {
            text += "  imported before: the same bytes are one run\n";
        }
        if reading::cells_with_attempts(cache).contains(&cell) {
            text += "  the cell has runs of its own, which comparisons of the matrix show in its place; \
                     `tprimat compare --imported` shows it\n";
        }
        if let Some(other) = &elsewhere {
            text += &format!(
                "  the same bytes are imported as {other} too; `tprimat cache set-aside {other} --reason TEXT` takes \
                 that one back\n"
            );
        }
        let set_aside = imports
            .set_aside_of(&cell)
            .find(|(of, _)| *of == number)
            .map(|(_, why)| why);
        if let Some(why) = set_aside {
            text += &format!(
                "  it does not count, for it was set aside ({}); `tprimat cache restore {cell}#{number}` lets it count\n",
                why.reason
            );
        }
        let json = json!({
            "cell": cell,
            "repeat": number,
            "known": is_known,
            "same_bytes_as": elsewhere,
            "kind": recorded.kind,
            "sources": recorded.sources,
            "supplied": run.supplied(),
            "format": run.result.trace.format,
            "outcome": run.result.outcome,
            "attestation": run.result.attestation.status,
        });
        Ok((cell, text, json))
    }

    /// A fact that the file says otherwise is a slip: nothing is imported by it.
    fn refuse_contradicted(&self, name: &str, run: &ImportedRun, claims: &Claims) -> Result<()> {
        if self.facts.is_empty() {
            return Ok(());
        }
        let alone = Recorded {
            facts: Facts::new(),
            ..run.recorded.clone()
        };
        let file = import::read(self.cache, &alone)?;
        let without = ImportedRun::judge(file.clone(), 1, alone, claims);
        match &import::contradictions(&self.facts, run, (&file, &without))[..] {
            [] => Ok(()),
            found => refused(
                format!("{name}: {}", found.join("; ")),
                "supply only what the file does not say: correct the value of --set, or leave it out",
            ),
        }
    }

    /// May a run be filed under a cell that was named for it?
    fn check(
        &mut self,
        imports: &Imports,
        cell: &str,
        unit: &Unit,
        run: &ImportedRun,
    ) -> Result<()> {
        if let (Some(differs), false) = (&run.other_platform, self.other_platform) {
            return refused(
                format!("{} is not imported into `{cell}`: {differs}", unit.name),
                "name a cell of that platform and framework; --other-platform imports it anyway, without a rate",
            );
        }
        let asked = &self.plan.asked;
        let id = run.recorded.id();
        let others = self.known(imports, cell)?.iter();
        refuse_other_workload(
            asked,
            cell,
            &run.result.contract,
            others
                .filter(|other| other.id != id)
                .map(|other| &other.contract),
            &format!("name another cell, as `{cell}@file=…`, or take back what it holds"),
        )
    }

    /// The cell of a run that nobody named: that of earlier runs of the same configuration, which it
    /// repeats; else what its name and content tell; where another configuration has that cell, one
    /// that is named after the file.
    fn cell_of(
        &mut self,
        imports: &Imports,
        unit: &Unit,
        mut guess: Guess,
        shown: &Shown,
    ) -> Result<String> {
        let mut cell = guess.cell();
        let base = |cell: &str| cell.split('@').next().map(str::to_owned);
        let near: Vec<&str> = imports
            .cells()
            .filter(|near| base(near) == base(&cell))
            .collect();
        let is_same_file: fn(&Shown, &Shown) -> bool = |a, b| a.id == b.id;
        for is_it in [is_same_file, Shown::is_repeat_of] {
            for near in &near {
                if self
                    .known(imports, near)?
                    .iter()
                    .any(|run| is_it(shown, run))
                {
                    return Ok((*near).to_owned());
                }
            }
        }
        // Named after its file, the run is a cell of its own.
        let plain = |c: char| if c.is_alphanumeric() { c } else { '-' };
        let word: String = import::stem(&unit.name).chars().map(plain).collect();
        let mut number = 1;
        while near.contains(&&*cell) {
            guess.rest = vec![word.trim_matches('-').to_owned()];
            guess.rest.extend((number > 1).then(|| number.to_string()));
            (cell, number) = (guess.cell(), number + 1);
        }
        Ok(cell)
    }
}

//! What a plan is asked: which cell a name means, what a cell runs, where its matrix is from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
};

use serde_json::Value;

use super::{Plan, Prepared, Support};
use crate::{
    config::strings,
    error::{Error, Problem, Result, Source, nearest},
    files::ReadSet,
    matrix::{self, CellId, Selection},
    recipe::{COMMAND, OPTIONS, Recipe, Unreached, unreached, varied},
    words::{part, plain::counted},
};

/// The variable with the path of the job's file.
const JOB_VARIABLE: &str = "TPRIMAT_JOB";
/// Up to this many cells are named in the command that measures them.
const NAMED: usize = 3;

impl Plan {
    /// The folder of the project's measurements.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.config.cache_dir(&self.root)
    }

    /// In a line, where the matrix comes from config.yaml alone.
    #[must_use]
    pub fn told_implied(&self) -> Option<String> {
        self.implied.as_ref()?;
        let names = |dimension: &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in self
                .matrix
                .cells
                .iter()
                .filter_map(|cell| cell.value(dimension))
            {
                if !names.contains(&&**name) {
                    names.push(name);
                }
            }
            names.join(", ")
        };
        let axes = ["platform", "framework", "model", "parallelism"]
            .map(names)
            .join(" × ");
        Some(format!(
            "there is no matrix file; config.yaml implies {axes}: {} (`tprimat init --matrix` writes it)",
            crate::words::plain::counted(self.cells.len(), "cell")
        ))
    }

    #[must_use]
    pub fn recipe(&self, cell: CellId) -> &Recipe {
        &self.recipes.recipes[&*self.matrix.cells[cell].framework]
    }

    /// Why a build on this host would not run a cell.
    #[must_use]
    pub fn why_not_run(&self, cell: CellId) -> Option<String> {
        match &self.cells[cell].support {
            Support::Unsupported(why) => Some(format!("is not supported: {why}")),
            Support::Ready(prepared) => prepared
                .here()
                .err()
                .map(|why| format!("cannot run on this host: {why}")),
        }
    }

    /// What measures cells that have no figures: the command for those that this host can run, or why
    /// it can run none of them.
    #[must_use]
    pub fn told_measuring(&self, cells: &[&str]) -> String {
        let why_not = |name: &str| self.why_not_run(self.find(name).ok()?);
        let here: Vec<&str> = (cells.iter().copied())
            .filter(|cell| why_not(cell).is_none())
            .collect();
        let elsewhere = cells.len() - here.len();
        if let ([], Some(first)) = (&here[..], cells.first()) {
            let why = why_not(first).unwrap_or_default();
            return match elsewhere {
                1 => format!("no build on this host measures it: `{first}` {why}"),
                n => format!(
                    "no build on this host measures these {n} cells; the first, `{first}`, {why}"
                ),
            };
        }
        let only: Vec<&str> = here.iter().flat_map(|cell| ["--only", cell]).collect();
        let words: &[&str] = if here.len() > NAMED { &[] } else { &only };
        let build = self.command("build", words);
        match elsewhere {
            0 => format!("`{build}` measures what is missing"),
            _ => format!(
                "`{build}` measures what is missing and can run here; {} cannot",
                counted(elsewhere, "cell")
            ),
        }
    }

    /// Settings of the workload that the cell's recipe, or a command of the user's own, does not
    /// hand to its trainer. A template may use a setting in some cells only, so they are looked for once for each job.
    #[must_use]
    pub fn unreached(&self, cell: CellId) -> Arc<[Unreached]> {
        let Some(prepared) = self.prepared(cell) else {
            return Arc::default();
        };
        let recipe = self.recipe(cell);
        if is_own(recipe) {
            let lost = self.lost.get_or_init(|| self.lost_by_commands());
            return lost.get(&cell).cloned().unwrap_or_default();
        }
        if recipe.file.launch.reads_job {
            return Arc::default();
        }
        let key = (
            self.matrix.cells[cell].framework.clone(),
            prepared.job_digest,
        );
        let known = || {
            self.unreached
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(found) = known().get(&key) {
            return found.clone();
        }
        let found: Arc<[Unreached]> =
            unreached(recipe, &self.recipes.templates, prepared.job()).into();
        known().insert(key, found.clone());
        found
    }

    /// Settings that nobody wrote and that the cell's command is not given: neither by name nor with the job.
    #[must_use]
    pub fn unwritten(&self, cell: CellId) -> &[&'static str] {
        let Some(prepared) = self.prepared(cell) else {
            return &[];
        };
        let command = prepared.job().framework.get(COMMAND);
        let mut words = command.map(strings).unwrap_or_default().into_iter();
        if prepared.resolved.unwritten.is_empty() || words.any(|word| word.contains(JOB_VARIABLE)) {
            return &[];
        }
        match self.opens_the_job(prepared) {
            true => &[],
            false => &prepared.resolved.unwritten,
        }
    }

    /// The sequence length that tokens/s of a command of the user's own would rest on, where it is neither given to the command nor
    /// read from the job, and a line of its log that is told need not state it.
    #[must_use]
    pub fn length_of_config(&self, cell: CellId) -> Option<u64> {
        let (recipe, prepared) = (self.recipe(cell), self.prepared(cell)?);
        let mut lines = recipe.file.log.patterns.iter();
        let states = |line: &String| {
            line.contains("tokens_per_second") || line.contains("effective_seq_length")
        };
        let path = format!("frameworks.{}.{COMMAND}", self.matrix.cells[cell].framework);
        let words = self.config.get(&path).map(strings).unwrap_or_default();
        let is_given = |word: &&str| {
            ["seq_length", "job.", JOB_VARIABLE]
                .iter()
                .any(|name| word.contains(name))
        };
        if !is_own(recipe) || lines.any(states) || words.iter().any(is_given) {
            return None;
        }
        (!self.opens_the_job(prepared)).then_some(prepared.job().data.seq_length)
    }

    /// Does a file that the command names have the variable of the job's file?
    fn opens_the_job(&self, prepared: &Prepared) -> bool {
        // Cells with the same inputs share them, and the files are read once.
        let inputs = Arc::as_ptr(&prepared.inputs) as usize;
        let mut known = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(inputs).or_insert_with(|| {
            let files = prepared.inputs.files.iter();
            names_the_job(&self.root, files.map(|input| input.name.as_str()))
        })
    }

    /// Settings in which cells differ that a command of the user's own launches alike, unless it
    /// opens the job.
    fn lost_by_commands(&self) -> HashMap<CellId, Arc<[Unreached]>> {
        let mut alike: BTreeMap<_, Vec<CellId>> = BTreeMap::new();
        for (cell, of) in self.matrix.cells.with_ids() {
            let Some(prepared) = self.prepared(cell).filter(|_| is_own(self.recipe(cell))) else {
                continue;
            };
            let place = (&of.framework, &of.platform, &of.parallelism);
            let resolved = &prepared.resolved;
            let command = prepared.job().framework.get(COMMAND).map(Value::to_string);
            // Cells with the same inputs share them.
            let with = (command, &resolved.env, Arc::as_ptr(&prepared.inputs));
            alike.entry((place, with)).or_default().push(cell);
        }
        let mut lost = HashMap::new();
        for cells in alike.into_values().filter(|cells| cells.len() > 1) {
            let prepared: Vec<&Prepared> = cells.iter().filter_map(|c| self.prepared(*c)).collect();
            let command = prepared[0].job().framework.get(COMMAND);
            let words = command.map(strings).unwrap_or_default();
            // Mostly the script itself opens it, and nothing else is looked at.
            if names_the_job(&self.root, words) {
                continue;
            }
            let varied: Arc<[Unreached]> = varied(prepared.iter().map(|p| p.job())).into();
            let inputs = prepared[0].inputs.files.iter();
            let inputs = inputs.map(|input| input.name.as_str());
            if !varied.is_empty() && !names_the_job(&self.root, inputs) {
                lost.extend(cells.into_iter().map(|cell| (cell, varied.clone())));
            }
        }
        lost
    }

    /// The first option below `frameworks.<id>` that has several values in the matrix.
    fn varied_option(&self, framework: &str) -> Option<&str> {
        let cells = self.matrix.cells.with_ids();
        let mut jobs = cells
            .filter(|(_, of)| &*of.framework == framework)
            .filter_map(|(cell, _)| Some(self.prepared(cell)?.job()));
        let first = jobs.next()?;
        let others: Vec<_> = jobs.collect();
        let is_varied = |name: &&String| {
            let value = first.framework.get(*name);
            name.as_str() != COMMAND && others.iter().any(|job| job.framework.get(*name) != value)
        };
        first.framework.keys().find(is_varied).map(String::as_str)
    }

    /// The option of an own command that has several formats in the matrix, where all its cells have one precision: tables would
    /// call them by that one.
    fn format_of_options(&self, framework: &str) -> Option<Problem> {
        const NAMES: [&str; 5] = [
            "dtype",
            "torch_dtype",
            "precision",
            "mixed_precision",
            "amp_dtype",
        ];
        const FORMATS: [&str; 8] = [
            "bf16", "bfloat16", "fp16", "float16", "fp32", "float32", "fp8", "tf32",
        ];
        let cells = self.matrix.cells.with_ids();
        let of = cells.filter(|(_, of)| &*of.framework == framework);
        let jobs: Vec<_> = of
            .filter_map(|(cell, _)| Some(self.prepared(cell)?.job()))
            .collect();
        let precision = &jobs.first()?.precision;
        if jobs.iter().any(|job| job.precision != *precision) {
            return None;
        }
        let values = |name: &str| -> BTreeSet<&str> {
            let values = jobs
                .iter()
                .filter_map(|job| job.framework.get(name)?.as_str());
            values.collect()
        };
        let formats = |name: &str| -> BTreeSet<String> {
            let all = values(name).into_iter();
            all.map(|value| value.replace("bfloat", "bf").replace("float", "fp"))
                .collect()
        };
        let is_format = |name: &&&str| {
            let values = values(name);
            formats(name).len() > 1 && values.iter().all(|value| FORMATS.contains(value))
        };
        let name = NAMES.iter().find(is_format)?;
        let list = Vec::from_iter(values(name)).join(", ");
        let message = format!(
            "`frameworks.{framework}.{name}` is {list} in the matrix, and the tables would call every cell {precision}"
        );
        let problem = self
            .config
            .problem_at("training.precision.default", message, "of all cells");
        Some(problem.help(
            "vary `training.precision.default` instead, and hand it over: `{{ precision }}`, or \
             `{{ 'bfloat16' if precision == 'bf16' else 'float32' }}`",
        ))
    }

    /// Recipes and commands of the user's own whose cells can have no rate: their lines have neither a
    /// time nor a rate, or what the matrix varies does not reach them, and no line states a setting.
    pub fn recipes_without_rate(&self) -> Result<()> {
        let mut problems: Vec<Problem> = Vec::new();
        for (cell, of) in self.matrix.cells.with_ids() {
            let recipe = self.recipe(cell);
            let log = &recipe.file.log;
            let states = |names: &[&str]| {
                let mut patterns = log.patterns.iter();
                patterns.any(|pattern| names.iter().any(|name| pattern.contains(name)))
            };
            // Names and lines of a table may stand for any field.
            let is_plain = log.names.is_empty() && log.lines.is_empty();
            if self.prepared(cell).is_none() || log.patterns.is_empty() || !is_plain {
                continue;
            }
            if !states(&["step_time_", "tokens_per_second"]) {
                let path = format!("frameworks.{}.log", of.framework);
                let message = format!(
                    "no line that `{}` prints has a step time or a rate, so its cells would have no rate",
                    of.framework
                );
                let problem = match self.config.get(&path) {
                    Some(_) => self
                        .config
                        .problem_at(&path, message, "neither is among these"),
                    None => Problem::new(format!("{message}: `patterns` of its recipe.toml")),
                };
                let problem = problem.help(
                    "print one of the two, and name it: `<tokens_per_second>` of all devices, or `<step_time_seconds>`",
                );
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
                continue;
            }
            if !is_own(recipe) || states(&["effective_"]) {
                continue;
            }
            if let Some(format) = self.format_of_options(&of.framework)
                && !problems.contains(&format)
            {
                problems.push(format);
            }
            let lost = self.unreached(cell);
            let Some(first) = lost.iter().find(|lost| lost.is_of_speed) else {
                continue;
            };
            let (varied, short) = match first.field {
                field if field == OPTIONS.1 => {
                    let name = self.varied_option(&of.framework).unwrap_or("NAME");
                    let varied = format!("frameworks.{}.{name}", of.framework);
                    (varied, format!("job.framework.{name}"))
                }
                field => {
                    let short = field.rsplit('.').next().unwrap_or(field);
                    (field.to_owned(), short.to_owned())
                }
            };
            let message = format!(
                "the matrix varies `{varied}`, and the command of `{}` is the same for each value, so its cells would have no rate",
                of.framework
            );
            let path = format!("frameworks.{}.{COMMAND}", of.framework);
            let problem = self.config.problem_at(&path, message, "here");
            let problem = problem.help(format!(
                "write `{{{{ {short} }}}}` into it, or read the job from $TPRIMAT_JOB in the script"
            ));
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Error::Invalid(problems)),
        }
    }

    #[must_use]
    pub fn prepared(&self, cell: CellId) -> Option<&Prepared> {
        match &self.cells[cell].support {
            Support::Ready(prepared) => Some(prepared),
            Support::Unsupported(_) => None,
        }
    }

    /// The cell that was meant; its axes may have been left out.
    fn near(&self, id: &str) -> Option<&str> {
        let ids = || self.cells.iter().map(|c| c.id.as_str());
        let base = |id: &'_ str| id.find('@').unwrap_or(id.len());
        // As many parts as were written.
        let depth = id.split('/').count();
        let end = |id: &'_ str| {
            id.match_indices('/')
                .nth(depth - 1)
                .map_or(base(id), |(at, _)| at)
        };
        let near = nearest(id, ids())
            .or_else(|| nearest(id, ids().map(|id| part(id, ..base(id)))))
            .or_else(|| nearest(id, ids().map(|id| part(id, ..end(id)))))?;
        ids().find(|id| *id == near || part(id, ..base(id)) == near || part(id, ..end(id)) == near)
    }

    /// Another matrix of the project that has this cell, as `--matrix` names it.
    #[must_use]
    pub fn matrix_with(&self, cell: &str) -> Option<String> {
        matrix::files(&self.root).into_iter().find(|file| {
            let reads = ReadSet::default();
            let Ok(Some(path)) = matrix::find(Some(file.as_str()), &self.root, &reads) else {
                return false;
            };
            let Ok(text) = crate::files::read_to_string(&path) else {
                return false;
            };
            // `auto` may stand for whatever platform the cell is of.
            let auto = cell.split('/').next();
            let source = Source::new(file.as_str(), text);
            let recipes = self.recipes.ids();
            matrix::load(source, &self.config, &recipes, auto, &[])
                .is_ok_and(|matrix| matrix.cells.iter().any(|of| of.to_string() == cell))
        })
    }

    /// Position of the cell that a name on the command line means: its id, or whatever `--only`
    /// takes if it means one cell.
    pub fn find(&self, name: &str) -> Result<CellId> {
        if let Some((id, _)) = self.cells.with_ids().find(|(_, c)| c.id == name) {
            return Ok(id);
        }
        let meant = Selection::of_cell(name).select(&self.matrix.cells);
        let meant: Vec<CellId> = match &meant {
            Ok(selected) => {
                let cells = self.cells.ids().zip(selected);
                cells.filter(|(_, is)| **is).map(|(id, _)| id).collect()
            }
            Err(_) => Vec::new(),
        };
        match meant[..] {
            [one] => Ok(one),
            [] => {
                let help = match (self.matrix_with(name), self.near(name)) {
                    (Some(matrix), _) => {
                        format!("the matrix `{matrix}` has it: add `--matrix {matrix}`")
                    }
                    (None, Some(near)) => format!("did you mean `{near}`?"),
                    (None, None) => format!("`{}` names the cells", self.command("list", &[])),
                };
                let message = format!("the matrix `{}` has no cell `{name}`", self.matrix.name);
                Err(Error::NothingSelected {
                    message,
                    help: Some(help),
                })
            }
            [first, second, ..] => {
                let more = if meant.len() > 2 {
                    format!(", or {} more", meant.len() - 2)
                } else {
                    String::new()
                };
                let problem = Problem::new(format!("`{name}` may be any of {} cells", meant.len()));
                let (first, second) = (&self.cells[first].id, &self.cells[second].id);
                Err(Error::invalid(
                    problem.help(format!("name one: {first}, {second}{more}")),
                ))
            }
        }
    }
}

/// Does it start a command of the user's own, which may open the job?
pub(super) fn is_own(recipe: &Recipe) -> bool {
    let launch = &recipe.file.launch;
    launch.reads_job && launch.has_option(COMMAND)
}

/// Is the variable of the job's file in one of these words, or in a file of the project that it is?
fn names_the_job<'w>(root: &Path, words: impl IntoIterator<Item = &'w str>) -> bool {
    /// A program that reads its job is no longer.
    const MOST: u64 = 4 << 20;
    words.into_iter().any(|word| {
        let path = root.join(word);
        let is_short = path
            .metadata()
            .is_ok_and(|file| file.is_file() && file.len() <= MOST);
        let text = is_short
            .then(|| crate::files::read(&path))
            .and_then(Result::ok);
        let is_in = |text: Vec<u8>| memchr::memmem::find(&text, JOB_VARIABLE.as_bytes()).is_some();
        word.contains(JOB_VARIABLE) || text.is_some_and(is_in)
    })
}

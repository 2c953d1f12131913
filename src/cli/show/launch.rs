//! `show CELL --launch`: what a cell would launch, before anything runs: its settings with their
//! origins, its degrees, its files.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    cli::{
        args::{Globals, ShowArgs},
        output::{answer, print_json},
        project, targets,
        train_host::GRACE_SECONDS,
    },
    config::{View, plain},
    error::{Error, Result, exit},
    execute::{Named, job_json, manifest},
    files::{Durability, read, write_atomically},
    job::{OTHER, count_active_parameters},
    matrix::CellId,
    plan::{Place, Plan, Prepared, Support},
    recipe::{Rendered, context},
};

pub fn run(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    let request = project::request(globals, &args.common, None, &args.measured)?;
    let plan = Plan::load(&request)?;
    // Repeats launch the same files.
    let cell = plan.find(project::split_repeat(&args.cell)?.0)?;
    let launch = Launch::of(&plan, cell)?;
    let Some(folder) = &args.output else {
        answer(globals, "launch", &launch.json(), || launch.text())?;
        return Ok(exit::OK);
    };
    targets::refuse_folder(&plan, "-o", folder)?;
    let job = job_json(launch.prepared.job());
    let files = launch
        .files
        .iter()
        .map(|file| (file.name.as_str(), file.bytes.as_slice()));
    let files: Vec<_> = files
        .chain([("job.json", job.as_slice())])
        .map(|(name, bytes)| (folder.join(name), bytes))
        .collect();
    if let Some((other, _)) = files
        .iter()
        .find(|(path, bytes)| path.exists() && !read(path).is_ok_and(|b| b == **bytes))
    {
        return Err(Error::refused(
            format!(
                "{} is there already, and is something else",
                other.display()
            ),
            "nothing was written; name another folder",
        ));
    }
    for (path, bytes) in files {
        write_atomically(&path, bytes, Durability::Plain)?;
        eprintln!("wrote {}", path.display());
    }
    if globals.json {
        print_json("launch", &launch.json())?;
    }
    Ok(exit::OK)
}

/// A cell that can be launched, with what its launch consists of.
pub struct Launch<'a> {
    plan: &'a Plan,
    cell: CellId,
    prepared: &'a Prepared,
    files: Vec<Rendered>,
}

/// One setting: its path, its value, and where that is from.
struct Setting {
    path: String,
    value: Value,
    from: String,
}

impl<'a> Launch<'a> {
    /// An error where the cell is unsupported, or its templates refuse the job.
    pub fn of(plan: &'a Plan, cell: CellId) -> Result<Self> {
        let prepared = match &plan.cells[cell].support {
            Support::Ready(prepared) => prepared,
            Support::Unsupported(why) => {
                let message = format!("`{}` is unsupported: {why}", plan.cells[cell].id);
                return Err(Error::failed(message));
            }
        };
        let context = context(prepared.job());
        let render = |(name, _): &(String, _)| plan.recipes.templates.render(name, &context);
        let files = plan
            .recipe(cell)
            .templates
            .iter()
            .map(render)
            .chain(of_kubernetes(plan, prepared))
            .collect::<Result<_>>()?;
        Ok(Self {
            plan,
            cell,
            prepared,
            files,
        })
    }

    /// The settings that the job is made of, in the order of config.yaml.
    fn settings(&self) -> Vec<Setting> {
        let of = &self.plan.matrix.cells[self.cell];
        let recipe = self.plan.recipe(self.cell);
        let view = self
            .plan
            .config
            .view(&recipe.defaults, &of.overlay)
            .of_cell(&of.platform, of.vendor, &of.framework);
        let mut found = Vec::new();
        for table in [
            format!("models.{}", of.model),
            "training".to_owned(),
            format!("frameworks.{}", of.framework),
        ] {
            collect(&view, &table, &mut found);
        }
        found
    }

    pub fn json(&self) -> Value {
        let settings: Vec<Value> = self
            .settings()
            .into_iter()
            .map(|setting| json!({ "path": setting.path, "value": setting.value, "from": setting.from }))
            .collect();
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|file| json!({ "name": file.name, "text": String::from_utf8_lossy(&file.bytes) }))
            .collect();
        json!({
            "cell": self.plan.cells[self.cell].id,
            "job": self.prepared.job(),
            "settings": settings,
            "environment": self.prepared.environment().variables,
            "command": self.plan.recipe(self.cell).file.launch.command,
            "files": files,
        })
    }

    /// One screen, and below it the files.
    pub fn text(&self) -> String {
        let (job, recipe) = (self.prepared.job(), &self.plan.recipe(self.cell).file);
        let (p, d) = (&job.parallelism, &job.data);
        let mut text = format!("{}: {}\n\n", self.plan.cells[self.cell].id, recipe.name);
        let _ = writeln!(
            text,
            "GPUs    TP {} × PP {} × CP {} × DP {} = {}{}{}",
            p.tensor_model_parallel_size,
            p.pipeline_model_parallel_size,
            p.context_parallel_size,
            p.data_parallel_size,
            p.num_gpus,
            if p.expert_model_parallel_size > 1 {
                format!(", EP {}", p.expert_model_parallel_size)
            } else {
                String::new()
            },
            if p.sharding.is_empty() {
                String::new()
            } else {
                format!(", sharding {}", p.sharding)
            },
        );
        let _ = writeln!(
            text,
            "batch   {} sequences of {} tokens a step = micro-batch {} × DP {} × accumulation {}",
            d.global_batch_size,
            d.seq_length,
            d.micro_batch_size,
            p.data_parallel_size,
            d.gradient_accumulation_steps
        );
        let count = job.model.num_parameters;
        let model = match (
            &*job.model.architecture,
            count_active_parameters(&job.model),
        ) {
            (OTHER, _) if count == 0 => "the script's own".to_owned(),
            (OTHER, _) => format!("{count} parameters, as config.yaml states"),
            (_, Some(active)) if job.model.num_experts > 0 => {
                format!(
                    "{count} parameters, counted from the shape; a token passes through {active}"
                )
            }
            _ => format!("{count} parameters, counted from the shape"),
        };
        let _ = writeln!(text, "model   {model}");
        let _ = writeln!(
            text,
            "run     {}\n\nsettings",
            recipe.launch.command.join(" ")
        );
        let settings = self.settings();
        let width = settings
            .iter()
            .map(|s| s.path.len() + plain(&s.value).len() + 3)
            .filter(|w| *w <= 72)
            .max();
        for Setting { path, value, from } in settings {
            let setting = format!("{path} = {}", plain(&value));
            let _ = writeln!(
                text,
                "  {setting:<width$}  # {from}",
                width = width.unwrap_or(0)
            );
        }
        for note in &self.prepared.resolved.notes {
            let _ = writeln!(text, "  note: {note}");
        }
        let variables = self.prepared.environment().variables;
        if !variables.is_empty() {
            text += "\nenvironment (variables whose names are those of secrets are left out)\n";
        }
        for (name, value) in variables {
            let _ = writeln!(text, "  {name}={value}");
        }
        for file in &self.files {
            let _ = write!(
                text,
                "\n── {} ──\n{}",
                file.name,
                String::from_utf8_lossy(&file.bytes)
            );
        }
        text
    }
}

/// The manifest of a run, whose id is not known before it starts.
fn of_kubernetes(plan: &Plan, prepared: &Prepared) -> Option<Result<Rendered>> {
    let execution = &prepared.resolved.execution;
    let dir = plan.config.cache_dir(&plan.root).join("runs/RUN");
    let tprimat = std::env::current_exe().unwrap_or_default();
    let named = Named {
        project: &plan.root,
        run_id: "RUN",
        dir: &dir.to_string_lossy(),
        owner: "RUNS",
        tprimat: &tprimat.to_string_lossy(),
        grace_seconds: GRACE_SECONDS,
        timeout_seconds: prepared.resolved.timeout_seconds,
    };
    (execution.place == Place::Kubernetes).then(|| manifest(execution, prepared.job(), &named))
}

/// The single values at and below `path`; where the platform or the framework states one, under its
/// own path.
fn collect(view: &View<'_>, path: &str, found: &mut Vec<Setting>) {
    if let (Some(value), Some((stated, origin))) = (view.get(path), view.origin(path)) {
        let from = if stated == path {
            origin.to_string()
        } else {
            format!("{stated}, {origin}")
        };
        found.push(Setting {
            path: path.to_owned(),
            value: value.clone(),
            from,
        });
        return;
    }
    for key in view.children(path) {
        collect(view, &format!("{path}.{key}"), found);
    }
}

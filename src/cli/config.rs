//! `config`: every effective setting with its origin.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    args::{ConfigArgs, Globals},
    output::{print, print_document, print_json},
    project,
    session::Project,
};
use crate::{
    config::{plain, public},
    error::{Error, Problem, Result, did_you_mean, exit},
    plan::PlanRequest,
};

pub fn run(globals: &Globals, args: &ConfigArgs) -> Result<i32> {
    let request = PlanRequest {
        root: project::root(globals)?,
        sets: args.sets.clone(),
        env: project::environment(),
        ..PlanRequest::default()
    };
    let Project {
        request, config, ..
    } = Project::of(request)?;
    match args.get.as_slice() {
        [] => {}
        [get, path] if get == "get" => {
            // Any spelling of a path that there may be.
            let resolved = config.resolve(path).ok();
            let path = resolved.as_deref().unwrap_or(path);
            if let Some(value) = config.get(path) {
                let value = public(path, value);
                if globals.json {
                    print_document(&value)?
                } else {
                    print(&format!("{}\n", plain(&value)))?
                }
                return Ok(exit::OK);
            }
            let known: Vec<String> = config
                .effective()
                .map(|(path, ..)| path.to_string())
                .collect();
            // A table prints what is below it.
            let below = format!("{path}.");
            let lines: String = config
                .effective()
                .filter(|(p, ..)| p.starts_with(&below))
                .map(|(p, value, _)| format!("{p} = {}\n", plain(&public(&p, value))))
                .collect();
            if !lines.is_empty() {
                if globals.json {
                    print_document(&public(path, &json!(config.table(path))))?
                } else {
                    print(&lines)?
                }
                return Ok(exit::OK);
            }
            let problem = Problem::new(format!("config.yaml has no `{path}`"));
            let near = did_you_mean(path, known.iter().map(String::as_str));
            return Err(Error::invalid(match near {
                Some(near) => problem.help(near),
                None => problem,
            }));
        }
        words => {
            return Err(Error::refused(
                format!("`tprimat config {}` is unknown", words.join(" ")),
                "`tprimat config` shows every setting, `tprimat config get PATH` one: training.seed",
            ));
        }
    }
    if args.shell {
        print(&config.shell_export())?;
    } else if globals.json {
        print_json("config", &config.to_json())?;
    } else {
        let mut text = String::new();
        for (path, value, origin) in config.effective() {
            let _ = writeln!(
                text,
                "{path} = {}  # {origin}",
                plain(&public(&path, value))
            );
        }
        // A token is handed to trainers and shown nowhere.
        if request
            .env
            .get("HF_TOKEN")
            .is_some_and(|token| !token.is_empty())
        {
            text += "# HF_TOKEN is set: trainers get it, and its value is not shown\n";
        }
        print(&text)?;
    }
    Ok(exit::OK)
}

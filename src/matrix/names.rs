//! What a written platform, framework, model or strategy stands for.

use super::{file::MatrixReader, read::Placed};
use crate::{
    config::{framework_named, framework_names},
    error::did_you_mean,
};

impl MatrixReader<'_> {
    /// The id that a written platform, framework, model or strategy stands for.
    pub fn base_name(&mut self, base: &str, written: &Placed<String>) -> Option<String> {
        let name = written.value.as_str();
        let (config, recipes) = (self.config, self.recipes);
        let table = match base {
            "platform" => return self.platform(written),
            "framework" => "frameworks",
            "model" => "models",
            _ => "parallelism",
        };
        let is_known = |id: &&str| {
            config.children(table).any(|known| known == *id)
                || base == "framework" && recipes.contains(id)
        };
        // A slash parts a cell's name, so a model is called by what the Hub's id has behind its owner.
        let alias = match base {
            "framework" => framework_named(name),
            "model" => name.rsplit_once('/').map(|(_, model)| model),
            _ => None,
        };
        if let Some(id) = Some(name).filter(is_known).or(alias.filter(is_known)) {
            return Some(id.to_owned());
        }
        let mut known: Vec<&str> = config.children(table).collect();
        if base == "framework" {
            known.extend(recipes);
            let long: Vec<&str> = known
                .iter()
                .flat_map(|id| framework_names(id))
                .map(String::as_str)
                .collect();
            known.extend(long);
        }
        self.unknown(
            base,
            written,
            &known,
            &format!("declare it under `{table}` in {}", config.source_name()),
        );
        None
    }

    fn platform(&mut self, written: &Placed<String>) -> Option<String> {
        let config = self.config;
        let name = match (written.value.as_str(), self.auto_platform) {
            ("auto", Some(name)) => name,
            ("auto", None) => {
                let message = "this host's platform is not known";
                self.toml.problem_with_help(
                    written.span.clone(),
                    message,
                    "cannot be resolved",
                    "config.yaml declares no platform of this host's kind below hardware.platforms, as in \
                     `cpu: { vendor: cpu, num_gpus: 1 }`",
                );
                return None;
            }
            (name, _) => name,
        };
        match config.platforms_named(name)[..] {
            [id] => return Some(id.to_owned()),
            [] => {
                let known: Vec<&str> = config.children("hardware.platforms").collect();
                let otherwise = format!(
                    "declare it under `hardware.platforms` in {}",
                    config.source_name()
                );
                let named = Placed {
                    value: name.to_owned(),
                    span: written.span.clone(),
                };
                self.unknown("platform", &named, &known, &otherwise);
            }
            ref ids => {
                let message = format!("platform `{name}` may be any of {}", ids.join(", "));
                self.toml.problem_with_help(
                    written.span.clone(),
                    message,
                    "which one?",
                    "name it by its id",
                );
            }
        }
        None
    }

    fn unknown(&mut self, what: &str, written: &Placed<String>, known: &[&str], otherwise: &str) {
        let help = did_you_mean(&written.value, known.iter().copied())
            .unwrap_or_else(|| otherwise.to_owned());
        let what = if what == "parallelism" {
            "strategy"
        } else {
            what
        };
        let message = format!("unknown {what} `{}`", written.value);
        self.toml.problem_with_help(
            written.span.clone(),
            message,
            format!("no {what} has this name"),
            help,
        );
    }
}

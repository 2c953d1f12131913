//! What a file's name says of the cell that it is of, by the habits of the suites that wrote such
//! files.

use std::sync::LazyLock;

use regex::Regex;

use super::{Kind, OldResult};
use crate::{
    config::{Config, framework_named, vendor_named},
    figures::device_vendor,
    job::Vendor,
};

/// What names and contents tell; `None` = they do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guess {
    pub platform: Option<String>,
    pub framework: Option<String>,
    pub model: Option<String>,
    /// Words of the name that are none of these: a data set, a date, a size.
    pub rest: Vec<String>,
}

/// Words that every such name may have.
const NOISE: &str = "train training benchmark log logs mp pretrain output result results run ranks \
                     rank events out tfevents stdout megatronlm";

impl Guess {
    /// `platform/framework/model/imported`, what else the name says as `@file=…`; `unknown` for
    /// what nothing tells.
    #[must_use]
    pub fn cell(&self) -> String {
        let parts = [&self.platform, &self.framework, &self.model];
        let parts = parts.map(|part| part.as_deref().unwrap_or("unknown"));
        let cell = format!("{}/imported", parts.join("/"));
        match &self.rest[..] {
            [] => cell,
            rest => format!("{cell}@file={}", rest.join("-")),
        }
    }

    /// Takes what `other` knows and this does not.
    pub fn or(&mut self, other: Guess) {
        self.platform = self.platform.take().or(other.platform);
        self.framework = self.framework.take().or(other.framework);
        self.model = self.model.take().or(other.model);
    }
}

/// `train_amd_prim_llama_c4.json`, `benchmark_rocm_llama.json`, `training_llama.log`,
/// `log_mp_pretrain_qwen2.5_7B-pretrain.txt`, `primus-llama-ranks/`.
#[must_use]
pub fn guess(name: &str, config: &Config) -> Guess {
    let stem = configuration(name);
    let mut found = Guess::default();
    let mut words: Vec<&str> = stem
        .split(['_', '-', ' ', '.'])
        .filter(|w| !w.is_empty())
        .collect();
    let model = model_in(&words, config).or_else(|| model_of_family(&words));
    if let Some((model, from, to)) = model {
        found.model = Some(model);
        words.drain(from..to);
    }
    for word in words {
        let platform = platform_named(word, config);
        let framework = framework_of(word, config);
        if let Some(platform) = platform.filter(|_| found.platform.is_none()) {
            found.platform = Some(platform);
        } else if let Some(framework) = framework.filter(|_| found.framework.is_none()) {
            found.framework = Some(framework);
        } else if !NOISE.split(' ').any(|noise| noise == word) {
            found
                .rest
                .push(word.chars().filter(|c| c.is_alphanumeric()).collect());
        }
    }
    found.rest.retain(|word| !word.is_empty());
    found
}

/// What a run's content tells of its cell, for files whose name does not.
#[must_use]
pub fn content_guess(old: &OldResult, kind: Kind, config: &Config) -> Guess {
    let format = Some(old.trace.format.as_str()).filter(|_| kind == Kind::Log);
    let device = old.trace.device.as_ref();
    let device = device.and_then(|device| device_vendor(device.name.as_deref()?));
    // Primus and its prints exist on one vendor's devices only.
    let of_format = (format == Some("primus")).then_some(Vendor::Amd);
    let vendor = device.or(of_format).map(Vendor::name);
    let platform = old.platform.as_deref().or(vendor);
    let framework = old.framework.as_deref();
    let framework = framework.and_then(|framework| framework_of(framework, config));
    Guess {
        platform: platform.and_then(|platform| platform_named(platform, config)),
        framework: framework.or_else(|| framework_of(format?, config)),
        ..Guess::default()
    }
}

/// A cell's name with the ids that this project uses, where another name of a platform or a
/// framework was given.
#[must_use]
pub fn canonical(cell: &str, config: &Config) -> String {
    let parts: Vec<&str> = cell.splitn(3, '/').collect();
    let [platform, framework, rest] = parts[..] else {
        return cell.to_owned();
    };
    let platform = platform_named(platform, config).unwrap_or_else(|| platform.to_owned());
    let framework = framework_of(framework, config).unwrap_or_else(|| framework.to_owned());
    format!("{platform}/{framework}/{rest}")
}

/// The platform's id, by any of its names.
fn platform_named(word: &str, config: &Config) -> Option<String> {
    let word = word.to_lowercase();
    match config.platforms_named(&word)[..] {
        [id] => Some(id.to_owned()),
        _ => vendor_named(&word).map(|vendor| vendor.name().to_owned()),
    }
}

/// The framework's id, by any of its names.
fn framework_of(word: &str, config: &Config) -> Option<String> {
    let word = word.to_lowercase();
    let own = config
        .children("frameworks")
        .find(|id| *id == word)
        .map(str::to_owned);
    own.or_else(|| framework_named(&word).map(str::to_owned))
}

/// The name without the endings of logs and results.
#[must_use]
pub fn stem(name: &str) -> &str {
    let mut stem = name;
    if let Some((before, _)) = stem.split_once(".events.out.tfevents") {
        return before;
    }
    for ending in [
        ".gz", ".json", ".jsonl", ".csv", ".log", ".txt", ".out", ".err",
    ] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    stem
}

/// The model of the config that consecutive words name: by its id, or by its full name
/// (`llama3.1_8B`). Where several fit, the one that says most: `llama-1b` before `llama`.
fn model_in(words: &[&str], config: &Config) -> Option<(String, usize, usize)> {
    let plain = |text: &str| {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.collect::<String>().to_lowercase()
    };
    let named = |joined: &str| {
        let is_named = |id: &&str| {
            let stated = config.settings().models.get(*id);
            let full = stated.and_then(|model| model.full_name.as_deref());
            plain(id) == joined || full.is_some_and(|full| plain(full) == joined)
        };
        config.children("models").find(is_named)
    };
    for length in (1..=words.len().min(6)).rev() {
        for (from, part) in words.windows(length).enumerate() {
            let joined = plain(&part.concat());
            if let Some(model) = named(&joined).filter(|_| !joined.is_empty()) {
                return Some((model.to_owned(), from, from + length));
            }
        }
    }
    None
}

/// Families of models. A name of one that the project does not have tells models apart, and claims nothing.
const FAMILIES: [&str; 9] = [
    "llama", "qwen", "mixtral", "mistral", "deepseek", "gemma", "gptoss", "gpt2", "nemotron",
];

/// A model by its family, with the words for its version and size: `llama3.1_8B` is `llama3-1-8b`. LLaMA-Factory and
/// llama-recipes are trainers.
fn model_of_family(words: &[&str]) -> Option<(String, usize, usize)> {
    static VERSION: LazyLock<Regex> = LazyLock::new(|| {
        let families = FAMILIES.join("|");
        Regex::new(&format!(r"^(?:{families})(?:v?\d\w*)?$")).expect("a literal")
    });
    static SIZE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^(?:\d{1,2}|[\dx]+[bm])$").expect("a literal"));
    let from = words.iter().position(|word| VERSION.is_match(word))?;
    let behind = &words[from + 1..];
    if matches!(behind.first(), Some(&("factory" | "recipes" | "cookbook"))) {
        return None;
    }
    let sizes = behind.iter().take_while(|word| SIZE.is_match(word)).count();
    let to = from + 1 + sizes;
    let plain = |word: &&str| word.chars().filter(|c| c.is_alphanumeric()).collect();
    let parts: Vec<String> = words[from..to].iter().map(plain).collect();
    Some((parts.join("-"), from, to))
}

/// The name without its ending, and without the words that only number runs of one configuration: a
/// date, a time, a run.
#[must_use]
pub fn configuration(name: &str) -> String {
    static NUMBERED: LazyLock<Regex> = LazyLock::new(|| {
        let stamp =
            r"\d{4}-?\d{2}-?\d{2}(?:[t_-]?\d{2}[-_.h]?\d{2}(?:[-_.m]?\d{2})?)?z?|\d{6}|\d{9,13}";
        let number = r"(?:run|rep|repeat|trial|attempt)[-_]?\d+";
        Regex::new(&format!(r"(?:^|[-_. ])(?:{stamp}|{number})(?:$|[-_. ])")).expect("a literal")
    });
    let mut name = stem(name).to_lowercase();
    // A match takes the sign behind it along, so the word after it is looked at again.
    while let Some(found) = NUMBERED.find(&name).map(|m| m.range()) {
        name.replace_range(found, "_");
    }
    name.trim_matches(['-', '_', '.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::Source;

    fn config() -> Config {
        let text = r"hardware: { platforms: { nvd: { vendor: nvd }, amd: { vendor: amd } } }
models:
  llama: { architecture: llama, full_name: Llama 3.1 8B }
  llama-1b: { architecture: llama, full_name: Llama 3.2 1B }
  qwen: { architecture: qwen2, full_name: Qwen2.5 7B }
";
        Config::load(Source::new("config.yaml", text), &BTreeMap::new(), &[])
            .unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn runs_of_one_configuration_have_one_name() {
        for name in [
            "benchmark_cuda_llama.json",
            "benchmark_cuda_llama_20260101_143021.json",
            "benchmark_cuda_llama_20260101-143021.json",
            "benchmark_cuda_llama-2026-01-01T14-30-21Z.json",
            "benchmark_cuda_llama_1766052086.json",
            "20260101_benchmark_cuda_llama.json",
            "benchmark_cuda_llama_run3.json",
            "benchmark_cuda_llama_run_2_20260102.log",
        ] {
            assert_eq!(configuration(name), "benchmark_cuda_llama", "{name}");
        }
        for name in [
            "benchmark_cuda_llama_8192.json",
            "benchmark_cuda_llama_c4.json",
            "benchmark_cuda_llama-1b.json",
        ] {
            assert_ne!(configuration(name), "benchmark_cuda_llama", "{name}");
        }
    }

    #[test]
    fn names_as_the_suites_wrote_them() {
        for (name, cell) in [
            (
                "train_amd_prim_llama_c4.json",
                "amd/prim/llama/imported@file=c4",
            ),
            ("train_nvd_nemo_llama.json", "nvd/nemo/llama/imported"),
            (
                "train_nvidia_megatron_llama-1b.json",
                "nvd/mega/llama-1b/imported",
            ),
            ("benchmark_rocm_llama.json", "amd/unknown/llama/imported"),
            (
                "benchmark_cuda_llama_20260105_121933.json",
                "nvd/unknown/llama/imported",
            ),
            ("training_llama.log", "unknown/unknown/llama/imported"),
            (
                "log_mp_pretrain_qwen2.5_7B-pretrain.txt",
                "unknown/unknown/qwen/imported",
            ),
            (
                "log_mp_pretrain_llama3.1_8B-pretrain.txt",
                "unknown/unknown/llama/imported",
            ),
            (
                "primus-llama-full-stdout.log",
                "unknown/prim/llama/imported@file=full",
            ),
            (
                "nemo-llama.events.out.tfevents.1766052086",
                "unknown/nemo/llama/imported",
            ),
            ("primus-llama-ranks", "unknown/prim/llama/imported"),
            ("noise", "unknown/unknown/unknown/imported@file=noise"),
            (
                "train_nvd_nemo_mixtral_8x7B_c4.json",
                "nvd/nemo/mixtral-8x7b/imported@file=c4",
            ),
            (
                "llamafactory-stall.log",
                "unknown/unknown/unknown/imported@file=llamafactory-stall",
            ),
            (
                "titan-deepseekv3-16gpu-2025.log",
                "unknown/titan/deepseekv3/imported@file=16gpu-2025",
            ),
        ] {
            assert_eq!(guess(name, &config()).cell(), cell, "{name}");
        }
    }

    #[test]
    fn any_name_makes_a_plain_cell() {
        for name in ["a b/c@d#e*.log", "☃.json", "", "...", "x,y=z.txt"] {
            let cell = guess(name, &config()).cell();
            let rest = cell.split_once("@file=").map_or("x", |(_, rest)| rest);
            assert!(crate::config::is_plain_name(rest), "{cell}");
        }
    }
}

//! The table of log formats: which there are, how a line speaks for one, and who reads it.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, OnceLock},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    builder::Builder,
    compile::Table,
    composer, deepspeed,
    engine::Engine,
    hf,
    lines::Line,
    megatron::{self, Megatron},
    mlperf, nemo,
    table::LogSection,
    telemetry, torchtitan, tprimat,
};

/// Reads one log, line by line. It may keep what it needs of earlier lines, in bounded memory.
pub trait Reader: Send {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder);
    /// Another process may begin with the line that comes: what was read so far waits for nothing.
    fn settle(&mut self, _out: &mut Builder) {}
    /// After the last line.
    fn end(&mut self, _out: &mut Builder) {}
}

/// How much a line says about who wrote it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    #[default]
    None,
    /// Such a line is usual in this format, but others have it as well: an argument dump.
    Weak,
    /// Only this format, or one built on it, has such lines: a step.
    Strong,
}

pub struct Format {
    pub name: &'static str,
    pub evidence: fn(&str) -> Evidence,
    pub reader: fn() -> Box<dyn Reader>,
}

/// In order of precedence: a format stands before those whose lines it prints as well.
pub static TABLE: &[Format] = &[
    Format {
        name: "tprimat",
        evidence: tprimat::evidence,
        reader: || Box::<tprimat::Events>::default(),
    },
    Format {
        name: "torchtitan",
        evidence: |line| shipped("torchtitan").evidence(line),
        reader: || Box::<torchtitan::Torchtitan>::default(),
    },
    Format {
        name: "nemo",
        evidence: |line| nemo::evidence(line).max(shipped("nemo").evidence(line)),
        reader: || Box::<nemo::Nemo>::default(),
    },
    Format {
        name: "automodel",
        evidence: |line| shipped("automodel").evidence(line),
        reader: || Box::new(Engine::new(shipped("automodel"))),
    },
    Format {
        name: "primus",
        evidence: megatron::primus,
        reader: || Box::<Megatron>::default(),
    },
    Format {
        name: "megatron-bridge",
        evidence: megatron::bridge,
        reader: || Box::<Megatron>::default(),
    },
    Format {
        name: "gpt-neox",
        evidence: megatron::neox,
        reader: || Box::<Megatron>::default(),
    },
    Format {
        name: "megatron-deepspeed",
        evidence: megatron::deepspeed,
        reader: || Box::<Megatron>::default(),
    },
    Format {
        name: "megatron",
        evidence: megatron::megatron,
        reader: || Box::<Megatron>::default(),
    },
    Format {
        name: "nanogpt",
        evidence: |line| shipped("nanogpt").evidence(line),
        reader: || Box::new(Engine::new(shipped("nanogpt"))),
    },
    Format {
        name: "llm.c",
        evidence: |line| shipped("llm.c").evidence(line),
        reader: || Box::new(Engine::new(shipped("llm.c"))),
    },
    Format {
        name: "maxtext",
        evidence: |line| shipped("maxtext").evidence(line),
        reader: || Box::new(Engine::new(shipped("maxtext"))),
    },
    Format {
        name: "composer",
        evidence: |line| shipped("composer").evidence(line),
        reader: || Box::<composer::Log>::default(),
    },
    Format {
        name: "llama-recipes",
        evidence: |line| shipped("llama-recipes").evidence(line),
        reader: || Box::new(Engine::new(shipped("llama-recipes"))),
    },
    Format {
        name: "hf-trainer",
        evidence: hf::evidence,
        reader: || Box::<hf::HuggingFace>::default(),
    },
    // After those that run on it and print its lines as well.
    Format {
        name: "deepspeed",
        evidence: |line| shipped("deepspeed").evidence(line),
        reader: || Box::<deepspeed::DeepSpeed>::default(),
    },
    // After the trainers whose steps it goes with: their own lines say more of a step.
    Format {
        name: "mlperf",
        evidence: mlperf::evidence,
        reader: || Box::<mlperf::Entries>::default(),
    },
    // Readings of devices; a trainer's log may show some before it begins.
    Format {
        name: "nvidia-smi",
        evidence: telemetry::nvidia_smi_evidence,
        reader: || Box::<telemetry::NvidiaSmi>::default(),
    },
    Format {
        name: "rocm-smi",
        evidence: telemetry::rocm_smi_evidence,
        reader: || Box::<telemetry::RocmSmi>::default(),
    },
    Format {
        name: "amd-smi",
        evidence: telemetry::amd_smi_evidence,
        reader: || Box::<telemetry::AmdSmi>::default(),
    },
];

/// Names that a recipe's `[log] format` may give, besides `regex`.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|f| f.name)
}

pub fn named(name: &str) -> Option<&'static Format> {
    TABLE.iter().find(|f| f.name == name)
}

/// A format as its file states it, and compiled.
type Shipped = (LogSection, OnceLock<Arc<Table>>);

/// The tables of formats.toml, each compiled when it is needed.
static SHIPPED: LazyLock<BTreeMap<String, Shipped>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Formats {
        log: Vec<LogSection>,
    }
    let formats: Formats =
        toml::from_str(include_str!("formats.toml")).expect("formats.toml is right");
    let formats = formats.log.into_iter();
    formats
        .map(|log| (log.format.clone(), (log, OnceLock::new())))
        .collect()
});

/// The table of a format in formats.toml.
pub fn shipped(name: &str) -> Arc<Table> {
    let (section, table) = &SHIPPED[name];
    let compile = || Table::compile(section).expect("the tables of formats.toml are right");
    Arc::clone(table.get_or_init(compile))
}

#[cfg(test)]
pub fn all_shipped() -> impl Iterator<Item = (&'static str, Arc<Table>)> {
    SHIPPED.keys().map(|name| (name.as_str(), shipped(name)))
}

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
    composer,
    deepspeed::DeepSpeed,
    engine::Engine,
    hf::{self, HuggingFace},
    lines::Line,
    megatron::{self, Megatron},
    mlperf,
    nemo::{self, Nemo},
    table::LogSection,
    telemetry::{self, AmdSmi, NvidiaSmi, RocmSmi},
    torchtitan::Torchtitan,
    tprimat::{self, Events},
    wandb::{self, Wandb},
};

/// Reads one log, line by line. It may keep what it needs of earlier lines, in bounded memory.
pub trait Reader: Send {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder);
    /// Another process may begin with the line that comes: what was read so far waits for nothing.
    fn settle(&mut self, _out: &mut Builder) {}
    /// An attempt has ended before its first step: what it said of its settings is not of the next one.
    fn forget(&mut self) {}
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

impl Evidence {
    /// This much if the line has what speaks for the format.
    pub fn only_if(self, is_there: bool) -> Self {
        match is_there {
            true => self,
            false => Self::None,
        }
    }
}

pub struct Format {
    pub name: &'static str,
    /// Code that knows lines of it, where its table in formats.toml does not know all.
    evidence: Option<fn(&str) -> Evidence>,
    /// Code that reads it, where its table does not alone.
    reader: Option<fn() -> Box<dyn Reader>>,
}

fn by<R: Reader + Default + 'static>() -> Box<dyn Reader> {
    Box::<R>::default()
}

impl Format {
    const fn of_table(name: &'static str) -> Self {
        Self {
            name,
            evidence: None,
            reader: None,
        }
    }

    /// A format whose lines its table knows, and that code reads.
    const fn of_both(name: &'static str, reader: fn() -> Box<dyn Reader>) -> Self {
        Self {
            reader: Some(reader),
            ..Self::of_table(name)
        }
    }

    const fn of_code(
        name: &'static str,
        evidence: fn(&str) -> Evidence,
        reader: fn() -> Box<dyn Reader>,
    ) -> Self {
        Self {
            evidence: Some(evidence),
            ..Self::of_both(name, reader)
        }
    }

    /// How much a line says for the format.
    pub fn evidence(&self, line: &str) -> Evidence {
        let evidence = self.evidence.map(|evidence| evidence(line));
        evidence.unwrap_or_else(|| shipped(self.name).evidence(line))
    }

    pub fn reader(&self) -> Box<dyn Reader> {
        let of_table = || -> Box<dyn Reader> { Box::new(Engine::new(shipped(self.name))) };
        self.reader.map_or_else(of_table, |reader| reader())
    }
}

/// In order of precedence: a format stands before those whose lines it prints as well.
pub static TABLE: &[Format] = &[
    Format::of_code("tprimat", tprimat::evidence, by::<Events>),
    Format::of_both("torchtitan", by::<Torchtitan>),
    Format::of_code("nemo", nemo::evidence, by::<Nemo>),
    Format::of_table("automodel"),
    Format::of_code("primus", megatron::primus, by::<Megatron>),
    Format::of_code("megatron-bridge", megatron::bridge, by::<Megatron>),
    Format::of_code("gpt-neox", megatron::neox, by::<Megatron>),
    Format::of_code("megatron-deepspeed", megatron::deepspeed, by::<Megatron>),
    Format::of_code("megatron", megatron::megatron, by::<Megatron>),
    Format::of_table("nanogpt"),
    Format::of_table("llm.c"),
    Format::of_table("maxtext"),
    Format::of_both("composer", by::<composer::Log>),
    Format::of_table("llama-recipes"),
    Format::of_table("nanochat"),
    Format::of_table("torchtune"),
    Format::of_table("olmo-core"),
    Format::of_table("verl"),
    Format::of_table("prime-rl"),
    Format::of_table("nanotron"),
    Format::of_table("litgpt"),
    Format::of_table("modded-nanogpt"),
    Format::of_table("slime"),
    Format::of_table("superbench"),
    Format::of_table("madengine"),
    Format::of_code("hf-trainer", hf::evidence, by::<HuggingFace>),
    // After those that run on it and print its lines as well.
    Format::of_both("deepspeed", by::<DeepSpeed>),
    // After the trainers whose steps it goes with: their own lines say more of a step.
    Format::of_code("mlperf", mlperf::evidence, by::<mlperf::Entries>),
    Format::of_code("wandb", wandb::evidence, by::<Wandb>),
    // Readings of devices; a trainer's log may show some before it begins.
    Format::of_code(
        "nvidia-smi",
        telemetry::nvidia_smi_evidence,
        by::<NvidiaSmi>,
    ),
    Format::of_code("rocm-smi", telemetry::rocm_smi_evidence, by::<RocmSmi>),
    Format::of_code("amd-smi", telemetry::amd_smi_evidence, by::<AmdSmi>),
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

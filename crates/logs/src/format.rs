//! The table of log formats: which there are, how a line speaks for one, and who reads it.

use super::{
    automodel,
    builder::Builder,
    composer, deepspeed, hf,
    lines::Line,
    llama_recipes, llmc, maxtext,
    megatron::{self, Megatron},
    mlperf, nanogpt, nemo, telemetry, torchtitan, tprimat,
};

/// Reads one log, line by line. It may keep what it needs of earlier lines, in bounded memory.
pub trait Reader: Send {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder);
    /// After the last line.
    fn end(&mut self, _out: &mut Builder) {}
}

/// How much a line says about who wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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
        evidence: torchtitan::evidence,
        reader: || Box::<torchtitan::Torchtitan>::default(),
    },
    Format {
        name: "nemo",
        evidence: nemo::evidence,
        reader: || Box::<nemo::Nemo>::default(),
    },
    Format {
        name: "automodel",
        evidence: automodel::evidence,
        reader: || Box::<automodel::Automodel>::default(),
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
        evidence: nanogpt::evidence,
        reader: || Box::<nanogpt::Log>::default(),
    },
    Format {
        name: "llm.c",
        evidence: llmc::evidence,
        reader: || Box::<llmc::Log>::default(),
    },
    Format {
        name: "maxtext",
        evidence: maxtext::evidence,
        reader: || Box::<maxtext::Log>::default(),
    },
    Format {
        name: "composer",
        evidence: composer::evidence,
        reader: || Box::<composer::Log>::default(),
    },
    Format {
        name: "llama-recipes",
        evidence: llama_recipes::evidence,
        reader: || Box::<llama_recipes::Log>::default(),
    },
    Format {
        name: "hf-trainer",
        evidence: hf::evidence,
        reader: || Box::<hf::HuggingFace>::default(),
    },
    // After those that run on it and print its lines as well.
    Format {
        name: "deepspeed",
        evidence: deepspeed::evidence,
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

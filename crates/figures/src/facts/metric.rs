//! What figures are made of, and why there are none.

use serde::{Deserialize, Serialize};

use super::ImpossibleRate;
use crate::{Peak, Price};

/// What a figure is made of: prices, peaks and counters with their sources. Rates are tokens/s/GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Basis {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    TotalRate {
        #[serde(with = "super::any_number")]
        rate: f64,
        gpus: u64,
    },
    /// [`Basis::TotalRate`], kept up over all of a long run.
    WithoutPause {
        #[serde(with = "super::any_number")]
        rate: f64,
        gpus: u64,
    },
    Rate {
        #[serde(with = "super::any_number")]
        rate: f64,
    },
    Flops {
        #[serde(with = "super::any_number")]
        rate: f64,
        #[serde(with = "super::any_number")]
        per_token: f64,
        convention: String,
    },
    Mfu {
        #[serde(with = "super::any_number")]
        tflops_per_gpu: f64,
        convention: String,
        peak: Peak,
    },
    Memory(MemoryUse),
    Loss {
        step: Option<u64>,
        repeats: usize,
    },
    TimeToLoss {
        smoothed: usize,
        #[serde(with = "super::any_number")]
        target: f64,
        repeats: usize,
    },
    AtPrice {
        #[serde(with = "super::any_number")]
        rate: f64,
        price: Price,
    },
    HoursAtPrice {
        #[serde(with = "super::any_number")]
        gpu_hours: f64,
        price: Price,
    },
    /// Prices of a trillion tokens.
    CostRatio {
        #[serde(with = "super::any_number")]
        a: f64,
        #[serde(with = "super::any_number")]
        b: f64,
        currency: String,
    },
    /// Who sampled, and how energy follows from it.
    Metered {
        repeats: usize,
        of: usize,
        methods: Vec<[String; 2]>,
    },
    AtTdp {
        #[serde(with = "super::any_number")]
        rate: f64,
        #[serde(with = "super::any_number")]
        watts: f64,
        source: String,
    },
    Scaling {
        is_strong: bool,
        #[serde(with = "super::any_number")]
        rate: f64,
        gpus: u64,
        reference: String,
        #[serde(with = "super::any_number")]
        reference_rate: f64,
        reference_gpus: u64,
    },
    /// FLOPs per token × rate, of a convention.
    ByConvention {
        convention: String,
    },
}

/// Bytes of device memory, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryUse {
    pub kind: String,
    pub source: String,
    #[serde(with = "super::any_number")]
    pub used: f64,
    #[serde(with = "super::any_number")]
    pub capacity: f64,
    pub capacity_source: String,
}

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoFigure {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    NotComputed,
    NoRepeatCounts,
    DevicesNotKnown,
    TokensNotKnown,
    FlopsNotKnown,
    PrecisionNotStated,
    NotOfACpu(CpuHasNo),
    BadRate {
        #[serde(with = "super::any_number")]
        rate: f64,
    },
    BadResult {
        #[serde(with = "super::any_number")]
        value: f64,
        basis: Basis,
    },
    MoreThanPeak {
        #[serde(with = "super::any_number")]
        tflops_per_gpu: f64,
        peak: Peak,
    },
    /// The device is not named; `peak` is the highest of its vendor's.
    MoreThanAnyKnown {
        #[serde(with = "super::any_number")]
        tflops_per_gpu: f64,
        peak: Peak,
    },
    // The device.
    LogSaysCpu {
        platform: String,
    },
    OtherVendor {
        platform: String,
        device: String,
    },
    OtherDeviceInLock {
        logged: String,
        locked: String,
    },
    DeviceNotNamed,
    Partitioned {
        device: String,
        mode: String,
    },
    NoDatasheet {
        device: String,
    },
    VirtualFunction {
        device: String,
    },
    Fp32OrTf32,
    NoPeak {
        precision: String,
        device: String,
    },
    NoTdp {
        source: String,
    },
    // Memory and loss.
    NoMemory,
    MoreMemoryThanThereIs(MemoryUse),
    NoLoss,
    NoTarget {
        model: String,
    },
    TargetNotReached {
        reached: usize,
        repeats: usize,
        #[serde(with = "super::any_number")]
        target: f64,
    },
    StepsBeforeTargetNotTimed,
    // Money.
    NoPrice {
        platform: String,
    },
    BadPrice {
        #[serde(with = "super::any_number")]
        per_gpu_hour: f64,
        currency: String,
    },
    OtherCurrency {
        a: String,
        b: String,
    },
    OfCell {
        cell: String,
        reason: Box<NoFigure>,
    },
    RateImpossible(Box<ImpossibleRate>),
    // Energy.
    PowerNotSampled,
    NoEnergy,
    EnergyOf {
        devices: u64,
        used: u64,
    },
    /// Seconds.
    EnergyOver {
        #[serde(with = "super::any_number")]
        metered: f64,
        #[serde(with = "super::any_number")]
        measured: f64,
    },
    BadEnergy {
        repeat: u32,
        #[serde(with = "super::any_number")]
        joules: f64,
    },
    /// A device.
    MoreWattsThanTdp {
        repeat: u32,
        #[serde(with = "super::any_number")]
        watts: f64,
        #[serde(with = "super::any_number")]
        tdp: f64,
    },
    // Scaling.
    NothingSmaller,
    OtherSetUp {
        reference: String,
        gpus: u64,
        fields: Vec<String>,
    },
    BatchNotKnown,
    NeitherStrongNorWeak {
        reference: String,
        batch: [u64; 2],
        gpus: [u64; 2],
    },
}

/// What is not defined for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuHasNo {
    Mfu,
    BoardEnergy,
    Tdp,
    DeviceMemory,
    GpuHour,
}

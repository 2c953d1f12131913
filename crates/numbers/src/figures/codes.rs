//! Codes of reasons by which something is decided.

/// Repeats that do not count; a note's values have their numbers.
pub const NOT_COUNTED: &str = "not_counted";
pub const FAILED: &str = "failed";
pub const SUSPECT: &str = "suspect";
pub const CONTRADICTED: &str = "contradicted";
/// The log is all right as far as it goes, and the job asked for more steps.
pub const ENDS_EARLY: &str = "ends_early";
/// No training step was found in the log.
pub const NO_STEP: &str = "no_step";
/// The timed steps are of two sides that drop different warm-up steps.
pub const OTHER_WARM_UP: &str = "other_warm_up";
/// How the warm-up of a cell differs from that of its baseline.
pub const WARM_UP: &str = "warm_up";
/// Step times may be in another unit than seconds.
pub const UNIT_ASKED: &str = "unit_asked";
/// The level of a run's step times shifts for good, and which level counts decides.
pub const LEVEL_SHIFT: &str = "level_shift";
/// Fewer repeats, sessions or hosts than a verdict needs.
pub const FEW_UNITS: &str = "few_units";
/// A gate's repeats cannot tell whether a cell is beyond the limit.
pub const CANNOT_TELL: &str = "cannot_tell";
/// A gate's cell is beyond the limit, but not significantly so.
pub const NOT_SIGNIFICANT: &str = "not_significant";
/// Runs were added until a decision, and too few of them are pairs for one.
pub const FEW_PAIRS: &str = "few_pairs";
/// A variable of a run's environment that alone can decide a comparison.
pub const DANGEROUS_VARIABLE: &str = "dangerous_variable";
/// Settings of an import that its file does not state, and that its importer supplied.
pub const SUPPLIED: &str = "supplied";
pub const FLOPS_NOT_KNOWN: &str = "flops_not_known";
pub const DEVICE_NOT_NAMED: &str = "device_not_named";
/// How speed-ups were tested.
pub const TESTED: &str = "tested";
/// A cell without figures; its values have the cell's state.
pub const ABSENT: &str = "absent";
/// Only one side states a setting that decides the work, or neither does.
pub const WORKLOADS_MAY_DIFFER: &str = "workloads_may_differ";
/// A gate's cell is slower than the limit allows.
pub const SLOWER: &str = "slower";

// Why runs have no rate. Each of these follows from what the trainer does and prints, so a
// run that is launched the same ends the same: see `comes_again`.
pub const LENGTH_NOT_KNOWN: &str = "length_not_known";
pub const BATCH_NOT_KNOWN: &str = "batch_not_known";
pub const TOKENS_NOT_KNOWN: &str = "tokens_not_known";
pub const DEVICES_NOT_KNOWN: &str = "devices_not_known";
pub const MIXED_UNITS: &str = "mixed_units";
pub const NO_STEP_IS_TIMED: &str = "no_step_is_timed";
pub const ALL_WITHIN_WARM_UP: &str = "all_within_warm_up";
pub const LONGER_THAN_RUN: &str = "longer_than_run";
pub const LONGER_THAN_PASSED: &str = "longer_than_passed";
pub const TIMES_OF_SEVERAL_STEPS: &str = "times_of_several_steps";
pub const TIMER_STOPS_EARLY: &str = "timer_stops_early";

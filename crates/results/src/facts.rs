//! What a log shows, as values with the numbers in them. No English: `tprimat-sentences` says each
//! of them, so that a reworded sentence makes no result stale.
//!
//! Values are kept as JSON by name (`{"device_count": {"stated": 8, …}}`) between tasks. What is
//! published has the sentence in their place, so that other tools need no table ([`in_words`]); read
//! again, such a file gives `Said`, and so does a result of a version that kept sentences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tprimat_logs::Anomaly;

use super::{ShapeChange, conventions::Convention};

/// Types whose values are facts: each derives its JSON as inherent functions (`remote = "Self"`);
/// the macro makes the choice between that and the sentence, and an enum of all of them.
#[macro_export]
macro_rules! facts {
    ($any:ident: $($name:ident)*) => {
        /// A fact of any type.
        #[derive(Clone, Copy, Debug)]
        pub enum $any<'a> { $($name(&'a $name),)* }

        /// Says a fact.
        pub type Words = fn($any<'_>) -> String;

        thread_local! {
            /// Serde hands nothing to a value that is written, so the choice is the thread's.
            static WORDS: ::std::cell::Cell<Option<Words>> = const { ::std::cell::Cell::new(None) };
        }

        /// Runs `write`; every fact that it serialises becomes the string that `words` gives for it.
        pub fn in_words<T>(words: Words, write: impl FnOnce() -> T) -> T {
            struct Before(Option<Words>);
            impl Drop for Before {
                fn drop(&mut self) {
                    WORDS.set(self.0);
                }
            }
            let _before = Before(WORDS.replace(Some(words)));
            write()
        }

        $(
            impl<'a> From<&'a $name> for $any<'a> {
                fn from(fact: &'a $name) -> Self { Self::$name(fact) }
            }
            impl From<String> for $name {
                fn from(sentence: String) -> Self { Self::Said(sentence) }
            }
            impl From<&str> for $name {
                fn from(sentence: &str) -> Self { Self::Said(sentence.to_owned()) }
            }
            impl ::serde::Serialize for $name {
                fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                    match WORDS.get() {
                        Some(words) => serializer.serialize_str(&words(self.into())),
                        None => Self::serialize(self, serializer),
                    }
                }
            }
            impl<'de> ::serde::Deserialize<'de> for $name {
                fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<Self, D::Error> {
                    let kept = <::serde_json::Value as ::serde::Deserialize>::deserialize(deserializer)?;
                    match Self::deserialize(&kept) {
                        Ok(fact) => Ok(fact),
                        Err(e) => kept.as_str().map(Self::from).ok_or_else(|| ::serde::de::Error::custom(e)),
                    }
                }
            }
            impl ::schemars::JsonSchema for $name {
                fn schema_name() -> ::std::borrow::Cow<'static, str> { stringify!($name).into() }
                fn inline_schema() -> bool { true }
                fn json_schema(generator: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                    <String as ::schemars::JsonSchema>::json_schema(generator)
                }
            }
        )*
    };
}

/// JSON of a number that may not be finite, which JSON has no number for: then it is a string.
pub mod any_number {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }

    pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if number.is_finite() {
            serializer.serialize_f64(*number)
        } else {
            serializer.collect_str(number)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(number),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// A number of a fact. Two are equal if their bits are, so that equal facts can be kept once.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(#[serde(with = "any_number")] pub f64);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl std::hash::Hash for Number {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self(number)
    }
}

/// A batch and a length, whose product is the tokens of an optimiser step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    pub batch: u64,
    pub length: u64,
}

impl Product {
    #[must_use]
    pub fn tokens(self) -> f64 {
        self.batch as f64 * self.length as f64
    }
}

/// The rate and the time whose product is the tokens of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokensFrom {
    /// The log's own lines.
    Lines {
        per_gpu: Number,
        gpus: u64,
        seconds: Number,
    },
    /// Totals of an imported file; the rate that its labels give, where that is another one.
    Published {
        rate: Number,
        seconds: Number,
        rate_of_labels: Option<Number>,
    },
}

/// A logged learning rate, and the step that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RateAt {
    pub rate: Number,
    pub step: u64,
}

/// The learning rates of a log: the first, the highest and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoggedRates {
    pub first: RateAt,
    pub peak: RateAt,
    pub last: RateAt,
}

/// The schedule that was asked for: a warm-up, then a cosine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AskedSchedule {
    pub warmup_steps: u64,
    pub peak: Number,
    pub least: Number,
}

/// How a value follows from what the log says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Arithmetic {
    /// The sentence, where that is all that is kept: see [`in_words`].
    Said(String),
    /// Micro-batch × data-parallel ranks × accumulation.
    BatchProduct {
        micro: u64,
        ranks: u64,
        accumulation: u64,
        product: u64,
    },
    /// A step that prints other tokens than batch × length.
    TokensOfStep {
        claimed: Product,
        step: u64,
        tokens: u64,
    },
    /// The log states a setting twice with two values.
    Restated {
        setting: String,
        first: Value,
        later: Value,
    },
    DeviceCount {
        stated: u64,
        counted: u64,
    },
    /// The last line may be some steps before the end of a run.
    LineEvery {
        last: u64,
        every: u64,
    },
    /// Lines that cannot be read may be those of the steps that are missing.
    StepsLost {
        /// Steps up to the last line that can be read.
        read: u64,
        asked: u64,
        lines: u64,
        /// The number of the first of them, from 1.
        first: u64,
    },
    SamplesPerStep {
        /// Samples, and the step after which the line says so.
        first: (u64, u64),
        last: (u64, u64),
        per_step: Number,
    },
    TokensPerStep {
        from: TokensFrom,
        tokens: Number,
        /// What batch and length are known to be, where both are.
        known: Option<Product>,
        /// They give these tokens.
        agrees: bool,
        /// What would give them otherwise.
        others: Vec<Product>,
    },
    /// A published mean, and the first step that it counts.
    MeanOfSteps {
        published: Number,
        skipped: usize,
        last: usize,
    },
    MeanOfNoSteps {
        published: Number,
    },
    FlopsPerToken {
        flops: Number,
        tokens_per_second: Number,
        per_token: Number,
        convention: Convention,
        convention_per_token: Number,
        fits: bool,
    },
    FirstLoss(FirstLoss),
    LearningRates(LoggedRates),
    ConstantLearningRate {
        rate: Number,
        asked: AskedSchedule,
    },
    LearningRatesThatFit {
        fit: usize,
        all: usize,
        asked: AskedSchedule,
        logged: LoggedRates,
    },
}

/// The first loss beside that of a guess, the logarithm of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirstLoss {
    pub loss: Number,
    pub step: u64,
    pub vocabulary: u64,
    pub guess: Number,
}

/// What is odd about a run, with its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Oddity {
    /// The sentence, where that is all that is kept: see [`in_words`]. Words of a log are such, too.
    Said(String),
    SlowFirstSteps {
        first: u64,
        last: u64,
        low: Number,
        high: Number,
        median: Number,
    },
    LevelShift {
        step: u64,
        before: Number,
        after: Number,
    },
    LastStep {
        step: u64,
        seconds: Number,
        median: Number,
    },
    LossCollapsed {
        step: u64,
        loss: Number,
    },
    FirstLoss(FirstLoss),
    /// The trainer's own rate, clock, batch and length do not fit together.
    RateDisagrees(Arithmetic),
    AdamForAdamw,
    /// The log stops at step `last` of the `asked` ones that it states.
    EndsEarly {
        asked: u64,
        last: u64,
    },
    BatchSizeChanges {
        first: u64,
        last: u64,
    },
    /// The log's own shape is used instead of that of the model that was guessed.
    ShapeOfLog {
        model: String,
        changes: Vec<ShapeChange>,
    },
}

/// Why a run that was timed has no rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Withheld {
    /// The sentence, where that is all that is kept: see [`in_words`].
    Said(String),
    /// Settings that the recipe does not hand over and that the log does not state.
    NotHandedOver(Vec<String>),
}

/// Why there are no samples beside a run.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoSamples {
    /// The sampler's own words; or the sentence, where that is all that is kept: see [`in_words`].
    Said(String),
    /// The file's first line is not one that this version reads.
    NoHeading,
    FewerThanTwo,
    GoneFromCache,
}

/// How step times were made that the trainer does not print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum StepTimeSource {
    /// The sentence, where that is all that is kept: see [`in_words`].
    Said(String),
    TrainersRate,
}

facts! {
    ResultFact:
    Arithmetic Oddity Withheld StepTimeSource NoSamples
}

/// Something odd about a run. What is odd about a log by itself is in its trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// `slow_first_steps`, `level_shift`, `last_step_outlier`, `loss_collapsed`, `first_loss`,
    /// `rate_disagrees`, …
    pub kind: String,
    pub detail: Oddity,
}

impl Finding {
    #[must_use]
    pub fn new(kind: &str, detail: Oddity) -> Self {
        Self {
            kind: kind.to_owned(),
            detail,
        }
    }
}

impl From<Anomaly> for Finding {
    fn from(anomaly: Anomaly) -> Self {
        Self {
            kind: anomaly.kind,
            detail: Oddity::Said(anomaly.detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_survives_json_and_a_sentence_of_an_older_version_is_kept() {
        let disagrees = Oddity::RateDisagrees(Arithmetic::TokensPerStep {
            from: TokensFrom::Published {
                rate: 2048.0.into(),
                seconds: f64::INFINITY.into(),
                rate_of_labels: None,
            },
            tokens: f64::INFINITY.into(),
            known: Some(Product {
                batch: 8,
                length: 128,
            }),
            agrees: false,
            others: Vec::new(),
        });
        let text = serde_json::to_string(&disagrees).unwrap();
        assert_eq!(serde_json::from_str::<Oddity>(&text).unwrap(), disagrees);
        let old = r#"{"kind": "level_shift", "detail": "near step 40 the median changes"}"#;
        let finding: Finding = serde_json::from_str(old).unwrap();
        assert_eq!(
            finding.detail,
            Oddity::Said("near step 40 the median changes".into())
        );
        let worded = in_words(|_| "words".to_owned(), || serde_json::to_value(&disagrees));
        assert_eq!(worded.unwrap(), Value::from("words"));
    }
}

//! The form of a matrix file, for editors and `tprimat print schema matrix`. Files are read by
//! `matrix::file`, which points at each mistake; a test holds the keys of both together.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// A matrix file (docs/matrix.md).
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatrixSchema {
    pub matrix: MatrixTable,
    /// Settings of the cells that `where` names.
    #[serde(default)]
    pub r#override: Vec<Override>,
    /// Cells of the product that are not measured.
    #[serde(default)]
    pub exclude: Vec<Exclude>,
    /// One cell more each: a value for each of the four dimensions, and for axes by their names.
    #[serde(default)]
    pub include: Vec<Include>,
}

#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatrixTable {
    /// The matrix's name in tables and in output/; the file's name where it is left out.
    pub name: Option<String>,
    /// Names below `hardware.platforms` of config.yaml, a vendor that one platform has, or `auto`.
    pub platform: OneOrMore<String>,
    /// Recipes (`tprimat recipe list`).
    pub framework: OneOrMore<String>,
    /// Names below `models` of config.yaml.
    pub model: OneOrMore<String>,
    /// Strategies: names below `parallelism` of config.yaml.
    pub parallelism: OneOrMore<String>,
    /// Measured runs a cell; without it `benchmarking.runs.default_num_runs` of config.yaml.
    #[schemars(range(min = 1, max = 10_000))]
    pub repeats: Option<u32>,
    /// Fields of the workload that the published comparison crosses, such as `seq_length`.
    pub across: Option<OneOrMore<String>>,
    /// Further dimensions, by their names.
    #[serde(default)]
    pub axes: BTreeMap<String, Axis>,
}

/// Values for one setting.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// The setting, as config.yaml spells it: `training.compile`.
    pub path: String,
    pub values: OneOrMore<Scalar>,
}

#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Dimensions or axes, and the values of the cells that are meant.
    pub r#where: BTreeMap<String, OneOrMore<Scalar>>,
    /// Paths of config.yaml and their values, as `"a.b" = 1` or as nested tables.
    pub set: BTreeMap<String, serde_json::Value>,
}

#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exclude {
    /// Dimensions or axes, and the values of the cells that are meant.
    pub r#where: BTreeMap<String, OneOrMore<Scalar>>,
    /// Why, as `tprimat plan` lists it.
    pub reason: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Include {
    pub platform: String,
    pub framework: String,
    pub model: String,
    pub parallelism: String,
    #[serde(flatten)]
    pub axes: BTreeMap<String, Scalar>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    Bool(bool),
    Number(f64),
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            cell::BASE,
            file::{FILE_KEYS, KEYS},
        },
        *,
    };

    #[test]
    fn the_schema_has_the_keys_that_the_reader_takes() {
        let schema = serde_json::to_value(schemars::schema_for!(MatrixSchema)).unwrap();
        let keys = |properties: &serde_json::Value| -> Vec<String> {
            let mut keys: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        let sorted = |keys: &[&str]| {
            let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&schema["properties"]), sorted(FILE_KEYS));
        let table = &schema["$defs"]["MatrixTable"];
        assert_eq!(keys(&table["properties"]), sorted(KEYS));
        assert_eq!(table["required"], serde_json::json!(BASE));
    }
}

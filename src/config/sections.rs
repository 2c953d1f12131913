//! The structs of [`super::schema`], filled with effective values: what code computes with.
//!
//! Whoever says where a value comes from reads it by its path; nobody else does.

use super::{
    nested::{fill, join},
    schema::{Execution, Framework, Model, Platform, Runs, Training, Validation, Warmup},
    view::View,
};
use serde::de::DeserializeOwned;

/// A table of config.yaml that there is once.
pub trait Section: DeserializeOwned + Default {
    /// Where it stands.
    const PATH: &'static str;
}

/// A table of config.yaml that there is once for each of the user's ids.
pub trait Entry: DeserializeOwned + Default {
    /// The table of the ids.
    const TABLE: &'static str;
}

impl Section for Training {
    const PATH: &'static str = "training";
}
impl Section for Warmup {
    const PATH: &'static str = "benchmarking.warmup";
}
impl Section for Runs {
    const PATH: &'static str = "benchmarking.runs";
}
impl Section for Validation {
    const PATH: &'static str = "validation";
}
impl Entry for Model {
    const TABLE: &'static str = "models";
}
impl Entry for Platform {
    const TABLE: &'static str = "hardware.platforms";
}
impl Entry for Framework {
    const TABLE: &'static str = "frameworks";
}
impl Entry for Execution {
    const TABLE: &'static str = "execution";
}

impl View<'_> {
    /// A section as the cell sees it.
    #[must_use]
    pub fn section<T: Section>(&self) -> T {
        fill(self.nested(T::PATH))
    }

    /// What `id` has in its table, as the cell sees it; the defaults where it has nothing.
    #[must_use]
    pub fn entry<T: Entry>(&self, id: &str) -> T {
        fill(self.nested(&join(T::TABLE, id)))
    }

    /// Is a value at or below `path` wrong in the file, so that its default stands in its place?
    #[must_use]
    pub fn is_guessed(&self, path: &str) -> bool {
        let is_below = |other: &str| {
            let rest = other.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut left_out = self.config.left_out.iter();
        left_out.any(|other| is_below(other) && !self.is_stated(other))
    }
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};
    use serde_json::Value;

    use super::{super::schema::ConfigFile, *};

    /// The name of the struct that the schema of config.yaml has at `path`; `*` stands for an id.
    fn struct_at(path: &str) -> String {
        let root = schema_for!(ConfigFile).to_value();
        let mut at = &root;
        let named = |at: &Value| {
            let reference = at["$ref"].as_str()?;
            Some(reference.rsplit('/').next()?.to_owned())
        };
        for key in path.split('.') {
            let below = named(at).map_or(at, |name| &root["$defs"][&name]);
            at = match key {
                "*" => &below["additionalProperties"],
                key => &below["properties"][key],
            };
        }
        named(at).unwrap_or_default()
    }

    #[test]
    fn each_section_is_read_from_where_the_schema_has_it() {
        fn section<T: Section + JsonSchema>() {
            assert_eq!(struct_at(T::PATH), T::schema_name());
        }
        fn entry<T: Entry + JsonSchema>() {
            assert_eq!(struct_at(&format!("{}.*", T::TABLE)), T::schema_name());
        }
        section::<Training>();
        section::<Warmup>();
        section::<Runs>();
        section::<Validation>();
        entry::<Model>();
        entry::<Platform>();
        entry::<Framework>();
        entry::<Execution>();
    }
}

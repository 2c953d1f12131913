//! Values that most cells of a sweep have alike, kept once.
//!
//! Ten thousand cells that differ in one setting state forty others alike. Reading their files
//! would make each of these ten thousand times; a [`Shared`] value that was read before is the one
//! that is there already.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::HashSet,
    hash::Hash,
    ops::{Deref, DerefMut},
    sync::Arc,
    thread::LocalKey,
};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values that a thread remembers. Beyond that it forgets them all and starts again: what was
/// forgotten is kept twice, which costs memory and nothing else.
const REMEMBERED: usize = 1 << 14;

/// The values of one type that this thread has read.
pub type Known<T> = RefCell<HashSet<Arc<T>>>;

/// A type whose values are worth keeping once.
pub trait Kept: Eq + Hash + Sized + 'static {
    fn known() -> &'static LocalKey<Known<Self>>;
}

/// Reads, writes and compares like the value itself. To change one leaves the others as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de> + Kept> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = T::deserialize(deserializer)?;
        Ok(T::known().with_borrow_mut(|known| {
            if let Some(same) = known.get(&value) {
                return Self(Arc::clone(same));
            }
            if known.len() >= REMEMBERED {
                known.clear();
            }
            let value = Arc::new(value);
            known.insert(Arc::clone(&value));
            Self(value)
        }))
    }
}

/// The schema is the value's: that it is shared shows nowhere.
impl<T: JsonSchema> JsonSchema for Shared<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use crate::results::Contract;

    #[test]
    fn what_two_cells_state_alike_is_kept_once_and_changes_alone() {
        let text = |seed: u64| {
            format!(
                r#"[{{"field":"seq_length","tier":"workload","value":128,"source":"effective"}},
                    {{"field":"seed","tier":"convergence","value":{seed},"source":"declared"}}]"#
            )
        };
        let read = |seed| serde_json::from_str::<Contract>(&text(seed)).unwrap();
        let (one, mut two) = (read(1), read(2));
        assert!(
            std::ptr::eq(&*one.0[0], &*two.0[0]),
            "the same value is there twice"
        );
        assert_eq!(two.get("seed"), Some(&2.into()));
        two.0[0].value = 256.into();
        assert_eq!(
            (one.count("seq_length"), two.count("seq_length")),
            (Some(128), Some(256))
        );
        assert_eq!(read(1), one);
    }
}

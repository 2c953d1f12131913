//! The files that ship inside the binary: recipes, templates, matrices, a first config.yaml.

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Bytes of one shipped file, by its path in the repository (`templates/native.sh.j2`).
#[must_use]
pub fn shipped_file(path: &str) -> Option<&'static [u8]> {
    FILES
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, bytes)| *bytes)
}

/// Shipped files below a folder (`recipes/`), as (path below it, bytes).
pub fn shipped_under(folder: &str) -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES
        .iter()
        .filter_map(move |(name, bytes)| Some((name.strip_prefix(folder)?, *bytes)))
}

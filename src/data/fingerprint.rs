//! The name of a dataset's content, wherever it lies.

use std::{fmt::Write as _, path::Path};

use super::verify;
use crate::{
    digest::Digest,
    error::{Error, Problem, Result},
};

/// Files that make a tokenizer, in a folder that may hold much else.
const TOKENIZER_FILES: [&str; 8] = [
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// BLAKE3 over a line `tprimat-dataset 1 DTYPE SEQUENCES DOCUMENT_INDICES MODES`, the lengths
/// (i32), the document indices (i64), the modes if there are any, and all tokens as they are
/// stored; little-endian. Offsets are left out: they follow from the lengths. A dataset with a
/// fault in its structure has no fingerprint.
pub fn fingerprint(prefix: &Path) -> Result<(Digest, verify::Report)> {
    let dataset = super::open(prefix)?;
    let report = verify::structure(&dataset);
    if !report.problems.is_empty() {
        let shown = dataset.prefix().display();
        return Err(Error::Invalid(
            report
                .problems
                .iter()
                .map(|p| Problem::new(format!("{shown}: {p}")))
                .collect(),
        ));
    }
    let index = dataset.index();
    let modes = index.modes().unwrap_or_default();
    let head = format!(
        "tprimat-dataset 1 {} {} {} {}\n",
        report.dtype,
        report.sequences,
        index.num_document_indices(),
        modes.len()
    );
    let mut hasher = blake3::Hasher::new();
    hasher.update(head.as_bytes());
    for table in [
        index.lengths_bytes(),
        index.documents_bytes(),
        modes,
        dataset.bin(),
    ] {
        hasher.update_rayon(table);
    }
    Ok((Digest(*hasher.finalize().as_bytes()), report))
}

/// Digest of a tokenizer: of the file's bytes, or of those files in a folder that make a tokenizer.
pub fn tokenizer_fingerprint(path: &Path) -> Result<Digest> {
    let of_file = |path: &Path| Digest::of_file(path).map_err(Error::io("cannot read", path));
    if !path.is_dir() {
        return of_file(path);
    }
    let mut text = String::from("tprimat-tokenizer 1\n");
    let mut found = false;
    for name in TOKENIZER_FILES
        .iter()
        .filter(|name| path.join(name).is_file())
    {
        found = true;
        let _ = writeln!(text, "{name} {}", of_file(&path.join(name))?);
    }
    if !found {
        let problem = Problem::new(format!("{} holds no tokenizer", path.display()));
        return Err(Error::invalid(
            problem.help(format!("expected one of {}", TOKENIZER_FILES.join(", "))),
        ));
    }
    Ok(Digest::of(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::Dtype,
        dataset_for_tests::write_dataset,
        files::{self, Durability},
    };

    /// Each inner list is a document, of sequences.
    fn digest(dtype: Dtype, documents: &[&[&[i64]]]) -> Digest {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("any");
        let sequences = |document: &&[&[i64]]| document.iter().map(|s| s.to_vec()).collect();
        write_dataset(
            &prefix,
            dtype,
            &documents.iter().map(sequences).collect::<Vec<_>>(),
        );
        fingerprint(&prefix).unwrap().0
    }

    #[test]
    fn content_decides_and_the_path_does_not() {
        let first = digest(Dtype::U16, &[&[&[1, 2], &[3]], &[&[4]]]);
        assert_eq!(digest(Dtype::U16, &[&[&[1, 2], &[3]], &[&[4]]]), first);
        let others = [
            digest(Dtype::U16, &[&[&[1, 2], &[3]], &[&[5]]]),
            digest(Dtype::U16, &[&[&[1], &[2, 3]], &[&[4]]]),
            digest(Dtype::U16, &[&[&[1, 2]], &[&[3], &[4]]]),
            digest(Dtype::I32, &[&[&[1, 2], &[3]], &[&[4]]]),
        ];
        assert!(others.iter().all(|other| *other != first));
    }

    #[test]
    fn a_tokenizer_is_a_file_or_the_files_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            files::write_atomically(
                &folder.path().join(name),
                text.as_bytes(),
                Durability::Plain,
            )
            .unwrap();
        };
        assert!(tokenizer_fingerprint(folder.path()).is_err());
        write("tokenizer.json", "{}");
        assert_eq!(
            tokenizer_fingerprint(&folder.path().join("tokenizer.json")).unwrap(),
            Digest::of("{}")
        );
        let before = tokenizer_fingerprint(folder.path()).unwrap();
        write("model.safetensors", "weights");
        assert_eq!(tokenizer_fingerprint(folder.path()).unwrap(), before);
        write("merges.txt", "a b");
        assert_ne!(tokenizer_fingerprint(folder.path()).unwrap(), before);
    }
}

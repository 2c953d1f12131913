//! Writes an indexed dataset in flat memory; it is there whole or not at all.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use tprimat_samples::{MAGIC, VERSION};

use super::{Dataset, Dtype};
use crate::{
    error::{Error, Problem, Result},
    files::{Durability, Staged},
};

pub struct Writer {
    prefix: PathBuf,
    dtype: Dtype,
    bin: Staged,
    /// The tables grow with the data as well, so they wait in files without a name.
    lengths: BufWriter<File>,
    documents: BufWriter<File>,
    sequences: u64,
    document_indices: u64,
    tokens: u64,
}

impl Writer {
    /// Begins PREFIX.idx and PREFIX.bin; what is there already is left alone.
    pub fn create(prefix: &Path, dtype: Dtype) -> Result<Self> {
        let [idx, bin] = Dataset::paths(prefix);
        if let Some(there) = [&idx, &bin].into_iter().find(|path| path.exists()) {
            let problem = Problem::new(format!("{} is there already", there.display()));
            return Err(Error::invalid(
                problem.help("remove it, or write to another prefix"),
            ));
        }
        let bin_file = Staged::create(&bin)?;
        let folder = bin
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let table = || {
            tempfile::tempfile_in(folder)
                .map(BufWriter::new)
                .map_err(Error::io("cannot write to", folder))
        };
        let mut writer = Self {
            prefix: prefix.to_owned(),
            dtype,
            bin: bin_file,
            lengths: table()?,
            documents: table()?,
            sequences: 0,
            document_indices: 0,
            tokens: 0,
        };
        writer.end_document()?;
        Ok(writer)
    }

    /// One more sequence of the document under way.
    pub fn sequence(&mut self, tokens: &[i64]) -> Result<()> {
        let length = i32::try_from(tokens.len()).map_err(|_| {
            failed(format!(
                "a sequence of {} tokens is longer than the format allows",
                tokens.len()
            ))
        })?;
        for &token in tokens {
            self.token(token)?;
        }
        self.put(|w| w.lengths.write_all(&length.to_le_bytes()))?;
        self.sequences += 1;
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// The sequences since the last call are a document.
    pub fn end_document(&mut self) -> Result<()> {
        let end = i64::try_from(self.sequences).expect("fewer sequences than bytes");
        self.put(|w| w.documents.write_all(&end.to_le_bytes()))?;
        self.document_indices += 1;
        Ok(())
    }

    /// Writes what is left and puts both files in place.
    pub fn finish(mut self) -> Result<()> {
        let [idx_path, _] = Dataset::paths(&self.prefix);
        let mut idx = Staged::create(&idx_path)?;
        self.index(&mut idx)
            .map_err(Error::io("cannot write", &idx_path))?;
        // The index last: where it is, its tokens are.
        self.bin.commit(Durability::Synced)?;
        idx.commit(Durability::Synced)
    }

    fn index(&mut self, idx: &mut impl Write) -> io::Result<()> {
        idx.write_all(MAGIC)?;
        idx.write_all(&VERSION.to_le_bytes())?;
        idx.write_all(&[self.dtype.code()])?;
        idx.write_all(&self.sequences.to_le_bytes())?;
        idx.write_all(&self.document_indices.to_le_bytes())?;
        let mut lengths = BufReader::new(read_back(&mut self.lengths)?);
        io::copy(&mut lengths, idx)?;
        lengths.rewind()?;
        let (mut length, mut pointer) = ([0; 4], 0i64);
        for _ in 0..self.sequences {
            idx.write_all(&pointer.to_le_bytes())?;
            lengths.read_exact(&mut length)?;
            pointer += i64::from(i32::from_le_bytes(length)) * self.dtype.size() as i64;
        }
        io::copy(&mut read_back(&mut self.documents)?, idx)?;
        Ok(())
    }

    fn token(&mut self, token: i64) -> Result<()> {
        let misfit = || failed(format!("token {token} does not fit {}", self.dtype.name()));
        let (bytes, size) = (token.to_le_bytes(), self.dtype.size());
        let fits = match self.dtype {
            Dtype::U8 => u8::try_from(token).is_ok(),
            Dtype::I8 => i8::try_from(token).is_ok(),
            Dtype::I16 => i16::try_from(token).is_ok(),
            Dtype::I32 => i32::try_from(token).is_ok(),
            Dtype::I64 => true,
            Dtype::U16 => u16::try_from(token).is_ok(),
            Dtype::F64 | Dtype::F32 => false,
        };
        if !fits {
            return Err(misfit());
        }
        // Two's complement: the low bytes are the number in the smaller type.
        self.put(|w| w.bin.write_all(&bytes[..size]))
    }

    fn put(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<()> {
        write(self).map_err(Error::io("cannot write", &self.prefix))
    }

    #[must_use]
    pub fn num_tokens(&self) -> u64 {
        self.tokens
    }
}

fn failed(message: String) -> Error {
    Error::failed(message)
}

fn read_back(file: &mut BufWriter<File>) -> io::Result<&mut File> {
    file.flush()?;
    file.get_mut().rewind()?;
    Ok(file.get_mut())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::verify;

    const DTYPES: [Dtype; 6] = [
        Dtype::U8,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U16,
    ];

    #[test]
    fn a_token_that_does_not_fit_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(&folder.path().join("d"), Dtype::U16).unwrap();
        writer.sequence(&[65_535]).unwrap();
        assert!(
            writer
                .sequence(&[65_536])
                .unwrap_err()
                .to_string()
                .contains("65536")
        );
        drop(writer);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_there_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        Writer::create(&prefix, Dtype::U16)
            .unwrap()
            .finish()
            .unwrap();
        assert!(Writer::create(&prefix, Dtype::U16).is_err());
        let report = verify(&prefix, None).unwrap();
        assert_eq!(
            (report.documents, report.tokens, report.problems),
            (0, 0, vec![]),
            "an empty one is a good one"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read(
            dtype in 0usize..6,
            documents in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(0i64..128, 0..20), 0..4), 0..8),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let prefix = folder.path().join("d.v1");
            let mut writer = Writer::create(&prefix, DTYPES[dtype]).unwrap();
            for document in &documents {
                for sequence in document {
                    writer.sequence(sequence).unwrap();
                }
                writer.end_document().unwrap();
            }
            writer.finish().unwrap();

            let sequences: Vec<&Vec<i64>> = documents.iter().flatten().collect();
            let tokens: Vec<i64> = sequences.iter().copied().flatten().copied().collect();
            let dataset = Dataset::open(&prefix).unwrap();
            let index = dataset.index();
            prop_assert_eq!(index.lengths().collect::<Vec<_>>(), sequences.iter().map(|s| s.len() as i32).collect::<Vec<_>>());
            let mut end = 0;
            let ends = documents.iter().map(|d| { end += d.len() as i64; end });
            prop_assert_eq!(index.document_indices().collect::<Vec<_>>(), std::iter::once(0).chain(ends).collect::<Vec<_>>());
            let mut read = Vec::new();
            index.dtype().decode(dataset.bin(), |token| read.push(token));
            prop_assert_eq!(&read, &tokens);
            let report = verify(&prefix, Some(128)).unwrap();
            prop_assert_eq!((report.tokens, report.problems), (tokens.len() as u64, vec![]));
            prop_assert_eq!(report.documents, documents.len() as u64);
        }
    }
}

//! What lists of processes show as a process's command line.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, ptr};

/// The memory in which the kernel put this process's arguments. A forked process has a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessTitle {
    start: usize,
    length: usize,
}

impl ProcessTitle {
    /// `None` where /proc does not say where it is.
    pub fn of_this_process() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name before `)` may hold any byte. `arg_start` and `arg_end` are fields 48 and 49 of
        // the line (proc_pid_stat(5)), and 3 is the first after the name.
        let mut fields = stat
            .get(stat.rfind(')')? + 1..)?
            .split_ascii_whitespace()
            .skip(48 - 3);
        let start: usize = fields.next()?.parse().ok()?;
        let end: usize = fields.next()?.parse().ok()?;
        // Zeros where the kernel does not tell this reader.
        (start > 0 && end > start).then(|| Self {
            start,
            length: end - start,
        })
    }

    /// Shows `words` from now on, cut off where they do not fit. Makes no system call and allocates
    /// nothing.
    pub fn show(self, words: &[&OsStr]) {
        let memory = ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: the kernel put the arguments there for this process to do with as it likes, and
        // whoever reads them as arguments later finds strings that end, the last byte being 0.
        let memory = unsafe { std::slice::from_raw_parts_mut(memory, self.length) };
        memory.fill(0);
        let room = memory.len() - 1;
        let bytes = words
            .iter()
            .flat_map(|word| word.as_bytes().iter().copied().chain([0]));
        for (place, byte) in memory[..room].iter_mut().zip(bytes) {
            *place = byte;
        }
    }
}

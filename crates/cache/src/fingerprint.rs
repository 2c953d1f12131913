//! A cheap identity of what a process knows of the cache: about 256 stats, and no file is read.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

use tprimat_base::digest::Digest;

use super::store::Cache;

/// File times advance in ticks, of 10 ms at most: two changes within one look like one.
const TICK: Duration = Duration::from_millis(12);

impl Cache {
    /// A digest of the records that this process has read or written, and of which objects exist. Two
    /// processes get the same digest only if they know the same records.
    ///
    /// A verdict that is filed under it therefore does not hold for records that others wrote after
    /// this process last looked, nor for its own records in a segment that was replaced since. The
    /// caller must make sure that nothing was read after the verdict was made
    /// ([`Cache::has_heard_of_others`]).
    ///
    /// Bytes changed inside an object's file, or before a segment's last record, do not show.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        let (digest, newest) = self.state();
        // A change within the tick of the last one would not show: let the tick end first.
        match SystemTime::now().duration_since(newest) {
            Ok(age) if age < TICK => {
                std::thread::sleep(TICK.saturating_sub(age));
                self.state().0
            }
            _ => digest,
        }
    }

    /// The digest, and when an object last came or went.
    fn state(&self) -> (Digest, SystemTime) {
        let mut hasher = blake3::Hasher::new();
        for (name, mark) in self.segments().known() {
            hasher
                .update(name.as_bytes())
                .update(&[0])
                .update(&mark.end.to_le_bytes())
                .update(&mark.checksum);
        }
        let mut newest = SystemTime::UNIX_EPOCH;
        let mut folder = self.root.join("objects/00");
        for fan in 0..=255u8 {
            folder.set_file_name(format!("{fan:02x}"));
            let Ok(meta) = fs::metadata(&folder) else {
                hasher.update(&[0]);
                continue;
            };
            newest = newest.max(meta.modified().unwrap_or(newest));
            hasher.update(&[1]);
            for field in [
                meta.ino() as i64,
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec(),
            ] {
                hasher.update(&field.to_le_bytes());
            }
        }
        (Digest(*hasher.finalize().as_bytes()), newest)
    }
}

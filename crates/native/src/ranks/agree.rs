//! What every rank must decide alike before the first step.

use tch::{Device, Kind, TchError, Tensor};

use super::Group;
use crate::stop::Stop;

/// Bytes of a reason that the other ranks are told.
const TOLD: usize = 256;

/// Compares what the ranks found out for themselves: `reason` says why this rank lacks what the
/// others may have.
///
/// Steps of different kinds call different collectives, and ranks that do not call the same ones
/// wait for each other for ever. So where some ranks have it and some lack it, every rank stops,
/// and all of them with the reason of the first one that lacks it.
pub fn all_or_none(
    group: &dyn Group,
    device: Device,
    what: &str,
    reason: Option<&str>,
) -> Result<(), Stop> {
    let (rank, size) = (group.rank(), group.size());
    let mut rows = vec![0f32; size * TOLD];
    // A reason may be empty, so a row says first whether there is one.
    let row = reason
        .map(|reason| [b"!".as_slice(), reason.as_bytes()].concat())
        .unwrap_or_default();
    rows[rank * TOLD..]
        .iter_mut()
        .take(TOLD)
        .zip(&row)
        .for_each(|(to, byte)| *to = f32::from(*byte));
    let all = told(group, device, &rows)?;
    let rows: Vec<&[u8]> = all.chunks(TOLD).collect();
    let lacks = |row: &&[u8]| row[0] != 0;
    let Some(first) = rows
        .iter()
        .position(lacks)
        .filter(|_| !rows.iter().all(lacks))
    else {
        return Ok(());
    };
    let reason: Vec<u8> = rows[first][1..]
        .iter()
        .copied()
        .take_while(|byte| *byte != 0)
        .collect();
    let text = format!(
        "rank {first} cannot run {what}, which others can: {}",
        String::from_utf8_lossy(&reason)
    );
    Err(Stop::Torch(TchError::Torch(text)))
}

/// The sum of the ranks' rows, of which each has written its own: bytes are exact in fp32.
fn told(group: &dyn Group, device: Device, rows: &[f32]) -> Result<Vec<u8>, TchError> {
    let tensor = Tensor::f_from_slice(rows)?.f_to_device(device)?;
    group.wait(group.all_reduce(&tensor)?)?;
    let sums = Vec::<f32>::try_from(tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)?;
    Ok(sums.into_iter().map(|sum| sum as u8).collect())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::ranks::Ring;

    /// What each rank is told where these have the given reasons.
    fn told(reasons: &[Option<&str>]) -> Vec<Option<String>> {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (ring, reason) in Ring::connected(reasons.len()).into_iter().zip(reasons) {
                threads.push(scope.spawn(move || {
                    let agreed = all_or_none(&ring, Device::Cpu, "the fused step", *reason);
                    agreed.err().map(|stop| stop.to_string())
                }));
            }
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn ranks_that_cannot_all_take_one_path_stop_with_the_reason_of_the_one_that_cannot() {
        assert_eq!(told(&[None, None, None]), [None, None, None]);
        assert_eq!(told(&[Some("no cuDNN"), Some("")]), [None, None]);
        let long = format!("CUDA out of memory, ü{}", "x".repeat(400));
        let stopped = told(&[None, Some(&long), None]);
        let first = stopped[0].clone().unwrap();
        assert!(
            first.contains(
                "rank 1 cannot run the fused step, which others can: CUDA out of memory, üxx"
            ),
            "{first}"
        );
        assert!(
            stopped.iter().all(|text| text.as_deref() == Some(&*first)),
            "{stopped:?}"
        );
        assert!(
            told(&[Some(""), None]).iter().all(Option::is_some),
            "a reason may be empty"
        );
    }
}

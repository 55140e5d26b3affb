//! Pictures into batches, on all threads, in buffers that stay.

use std::path::PathBuf;
use std::sync::Mutex;

use holdall_data::config::Augment;
use holdall_data::error::DataError;
use holdall_data::picture::{Occasion, Scratch, augmented_into, evaluated_into};
use holdall_data::samples::Samples;
use holdall_device::cpu::Cpu;
use rayon::prelude::*;

/// What happens to a picture on its way.
#[derive(Clone, Copy, Debug)]
pub enum View {
    /// As CLIP's own image processor does it.
    Evaluation,
    /// A random crop: a function of (seed, epoch, sample).
    Training {
        /// How far it may go.
        augment: Augment,
        /// The run's.
        seed: u64,
        /// Counted from 0.
        epoch: u64,
    },
}

/// A picture that cannot be read.
#[derive(Debug)]
pub struct BadPicture {
    /// Its place among those asked for.
    pub index: usize,
    /// What is wrong with it.
    pub error: Box<DataError>,
}

/// Reads pictures, each thread with its own buffers.
pub struct Pictures {
    size: usize,
    rooms: Vec<Mutex<Room>>,
}

#[derive(Default)]
struct Room {
    scratch: Scratch,
    path: PathBuf,
}

impl Pictures {
    /// For pictures of `size` x `size`.
    pub fn new(size: usize, cpu: &Cpu) -> Pictures {
        Pictures {
            size,
            rooms: (0..cpu.num_threads()).map(|_| Mutex::default()).collect(),
        }
    }

    /// Bytes of one picture.
    pub fn bytes_each(&self) -> usize {
        self.size * self.size * 3
    }

    /// Writes the pictures that `chosen` names, in its order, to the start of `out`. The first error in that order is the
    /// one reported, whichever thread met it.
    pub fn read(
        &self,
        cpu: &Cpu,
        samples: &Samples,
        chosen: &[u32],
        view: View,
        out: &mut [u8],
    ) -> Result<(), BadPicture> {
        let places = out.par_chunks_mut(self.bytes_each());
        let one = |(&sample, place): (&u32, &mut [u8])| {
            let thread = rayon::current_thread_index().unwrap_or(0);
            let room = &self.rooms[thread % self.rooms.len()];
            let mut room = room.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let Room { scratch, path } = &mut *room;
            samples.image_path_into(sample as usize, path);
            match view {
                View::Evaluation => evaluated_into(path, self.size as u32, scratch, place),
                View::Training {
                    augment,
                    seed,
                    epoch,
                } => augmented_into(
                    path,
                    self.size as u32,
                    augment,
                    Occasion {
                        seed,
                        epoch,
                        sample: u64::from(sample),
                    },
                    scratch,
                    place,
                ),
            }
        };
        let failures = Mutex::new(None::<BadPicture>);
        cpu.scope(|| {
            chosen
                .par_iter()
                .zip(places)
                .enumerate()
                .for_each(|(index, pair)| {
                    if let Err(error) = one(pair) {
                        let mut first = failures
                            .lock()
                            .unwrap_or_else(|poisoned| poisoned.into_inner());
                        if first.as_ref().is_none_or(|before| index < before.index) {
                            *first = Some(BadPicture {
                                index,
                                error: Box::new(error),
                            });
                        }
                    }
                });
        });
        let failures = failures
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        failures.map_or(Ok(()), Err)
    }
}

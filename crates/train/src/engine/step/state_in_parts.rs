//! Sharded optimizer state as one list: the process that writes a checkpoint requests each tensor from its owner.
//!
//! ```text
//! rank 0   requests a tensor by its index in the list      ... all done
//! others   answer: the owner with the bytes, the rest with none
//! ```

use std::borrow::Cow;
use std::io;

use holdall_device::DeviceError;
use holdall_graph::Parameter;
use holdall_graph::ops::update::{MOMENT_BLOCK, MomentFormat};
use holdall_models::folder::{ElementFormat, Elements, Values};
use holdall_processes::{Group, GroupError};

use super::{Step, Stored};
use crate::engine::optimizer::StatePart;
use crate::engine::update_graph::owners;

/// A tensor of the optimizer's state, in this or another process.
pub enum StateTensor<'a> {
    Here(Stored<'a>),
    Elsewhere(Elsewhere<'a>),
}

/// A tensor of the optimizer's state that another process holds.
pub struct Elsewhere<'a> {
    group: &'a Group,
    /// Index in the list.
    place: u64,
    owner: usize,
    num_values: usize,
    format: ElementFormat,
}

/// The request that ends the exchange.
const DONE: u64 = u64::MAX;

impl Elsewhere<'_> {
    fn fetch(&self) -> Result<Vec<u8>, GroupError> {
        self.group
            .broadcast(&mut self.place.to_le_bytes().to_vec())?;
        let mut answers = self.group.gather_bytes(&[])?;
        Ok(std::mem::take(&mut answers[self.owner]))
    }
}

impl Values for StateTensor<'_> {
    fn num_values(&self) -> usize {
        match self {
            StateTensor::Here(stored) => stored.num_values(),
            StateTensor::Elsewhere(tensor) => tensor.num_values,
        }
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        match self.elements()? {
            Elements::F32(values) => Ok(values),
            _ => Err(io::Error::other("no numbers in 32 bit")),
        }
    }

    fn format(&self) -> ElementFormat {
        match self {
            StateTensor::Here(stored) => stored.format(),
            StateTensor::Elsewhere(tensor) => tensor.format,
        }
    }

    fn elements(&self) -> io::Result<Elements<'_>> {
        let tensor = match self {
            StateTensor::Here(stored) => return Values::elements(stored),
            StateTensor::Elsewhere(tensor) => tensor,
        };
        let bytes = tensor.fetch().map_err(io::Error::other)?;
        let halves = || {
            let halves = bytes.as_chunks().0.iter();
            halves.map(|two| u16::from_le_bytes(*two)).collect()
        };
        let elements = match tensor.format {
            ElementFormat::F32 => {
                let words = bytes.as_chunks().0.iter();
                Elements::F32(words.map(|four| f32::from_le_bytes(*four)).collect())
            }
            ElementFormat::Bf16 => Elements::Bf16(Cow::Owned(halves())),
            ElementFormat::F16 => Elements::F16(Cow::Owned(halves())),
            ElementFormat::U8 => Elements::U8(Cow::Owned(bytes)),
        };
        Ok(elements)
    }
}

/// Little-endian bytes of the elements.
fn bytes_of(elements: &Elements<'_>) -> Vec<u8> {
    match elements {
        Elements::F32(values) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        Elements::Bf16(values) | Elements::F16(values) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        Elements::U8(values) => values.to_vec(),
    }
}

impl Step {
    /// All tensors of the optimizer's state over all processes, in the order of the graph's parameters, under their names in
    /// a checkpoint. If the state is sharded, one process reads the tensors while the others
    /// [answer](Step::answer_for_state).
    pub fn whole_optimizer_state(&self) -> Vec<(String, StateTensor<'_>)> {
        if !self.config.shards_state() {
            let state = self.optimizer_state();
            return state
                .map(|(parameter, part, stored)| {
                    let name = part.checkpoint_name(&parameter.name);
                    (name, StateTensor::Here(stored))
                })
                .collect();
        }
        let list = self.state_of_all();
        let tensors = list.into_iter().enumerate();
        tensors
            .map(|(place, (parameter, part, owner, format))| {
                let name = part.checkpoint_name(&parameter.name);
                let tensor = if owner == self.config.processes.rank {
                    StateTensor::Here(self.state_tensor(parameter, part))
                } else {
                    StateTensor::Elsewhere(Elsewhere {
                        group: &self.group,
                        place: place as u64,
                        owner,
                        num_values: self.num_values(parameter, part),
                        format,
                    })
                };
                (name, tensor)
            })
            .collect()
    }

    /// Sends this process's tensors on request, until the writing process has the whole state.
    pub fn answer_for_state(&self) -> Result<(), DeviceError> {
        if !self.config.shards_state() {
            return Ok(());
        }
        let lost = |error: GroupError| DeviceError::Failed(error.to_string());
        let list = self.state_of_all();
        loop {
            let mut asked = Vec::new();
            self.group.broadcast(&mut asked).map_err(lost)?;
            let asked = <[u8; 8]>::try_from(asked.as_slice()).map_or(DONE, u64::from_le_bytes);
            let Some(&(parameter, part, owner, _)) = list.get(asked as usize) else {
                return Ok(());
            };
            let own = if owner == self.config.processes.rank {
                bytes_of(&self.state_tensor(parameter, part).elements()?)
            } else {
                Vec::new()
            };
            self.group.gather_bytes(&own).map_err(lost)?;
        }
    }

    /// Ends the exchange: the state was read, or the rest is not needed.
    pub fn release_state(&self) {
        if self.config.shards_state() {
            // The next step notices a lost process.
            let _ = self.group.broadcast(&mut DONE.to_le_bytes().to_vec());
        }
    }

    fn state_tensor(&self, parameter: &Parameter, part: StatePart) -> Stored<'_> {
        self.stored_at(self.place(&part.endpoint(&parameter.name)))
    }

    fn num_values(&self, parameter: &Parameter, part: StatePart) -> usize {
        let elements = self.plan.graph.shape(parameter.value).num_elements();
        match part {
            StatePart::FirstScales | StatePart::SecondScales => elements.div_ceil(MOMENT_BLOCK),
            _ => elements,
        }
    }

    /// All tensors of the state, with owner and format.
    fn state_of_all(&self) -> Vec<(&Parameter, StatePart, usize, ElementFormat)> {
        let graph = &self.plan.graph;
        let trained = self.parameters().iter().filter(|one| one.trainable);
        let trained: Vec<&Parameter> = trained.collect();
        let list: Vec<Parameter> = trained.iter().map(|&one| one.clone()).collect();
        let owners = owners(graph, &list, self.config.processes.count);
        let updates = self.config.optimizer.operation(graph).parameters;
        let mut all = Vec::new();
        for ((parameter, owner), update) in trained.into_iter().zip(owners).zip(updates) {
            for &part in StatePart::of_moments(update.moments) {
                let format = match (part, update.moments) {
                    (StatePart::FirstScales | StatePart::SecondScales, _)
                    | (_, MomentFormat::F32) => ElementFormat::F32,
                    (_, MomentFormat::Bf16) => ElementFormat::Bf16,
                    (_, MomentFormat::EightBit) => ElementFormat::U8,
                };
                all.push((parameter, part, owner, format));
            }
        }
        all
    }
}

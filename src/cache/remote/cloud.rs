//! S3, Google Cloud Storage and Azure. Keys and endpoints are read from the environment, under the
//! names that the clouds' own tools use; they are in no address and in no message.

use std::{io, time::Duration};

use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    ClientConfigKey, Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    path::Path,
};
use tokio::runtime::Runtime;

use super::{Store, too_large};

/// A remote that does not answer delays a build by no more than a few of these.
const CONNECT: &str = "5s";
const READ: &str = "30s";
const WHOLE: &str = "15m";

pub struct Cloud {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
}

impl Cloud {
    /// `rest`: the bucket and the folder in it.
    pub fn new(scheme: &str, rest: &str) -> Result<Self, String> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("the bucket is missing".into());
        }
        let retry = RetryConfig {
            max_retries: 3,
            retry_timeout: Duration::from_secs(20),
            ..RetryConfig::default()
        };
        let limits = [
            (ClientConfigKey::ConnectTimeout, CONNECT),
            (ClientConfigKey::ReadTimeout, READ),
            (ClientConfigKey::Timeout, WHOLE),
        ];
        let said = |e: Error| e.to_string();
        let store: Box<dyn ObjectStore> = match scheme {
            "s3" => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let builder = limits.into_iter().fold(builder, |builder, (key, value)| {
                    builder.with_config(AmazonS3ConfigKey::Client(key), value)
                });
                Box::new(builder.with_retry(retry).build().map_err(said)?)
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                let builder = limits.into_iter().fold(builder, |builder, (key, value)| {
                    builder.with_config(GoogleConfigKey::Client(key), value)
                });
                Box::new(builder.with_retry(retry).build().map_err(said)?)
            }
            _ => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
                let builder = limits.into_iter().fold(builder, |builder, (key, value)| {
                    builder.with_config(AzureConfigKey::Client(key), value)
                });
                Box::new(builder.with_retry(retry).build().map_err(said)?)
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Self {
            store,
            prefix: Path::from(prefix),
            runtime,
        })
    }

    fn path(&self, name: &str) -> Path {
        self.prefix
            .parts()
            .chain(Path::from(name).parts())
            .collect()
    }
}

impl Store for Cloud {
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let folder = self.path(folder);
        let below = |path: Path| {
            let parts: Vec<_> = path.prefix_match(&self.prefix)?.collect();
            let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
            Some(parts.join("/"))
        };
        let names = self.store.list(Some(&folder)).map_ok(|meta| meta.location);
        let found: Vec<Path> = self.runtime.block_on(names.try_collect()).map_err(failed)?;
        Ok(found.into_iter().filter_map(below).collect())
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.runtime.block_on(async {
            let answer = match self.store.get(&self.path(name)).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                other => other.map_err(failed)?,
            };
            let mut bytes = Vec::new();
            let mut chunks = answer.into_stream();
            while let Some(chunk) = chunks.next().await {
                bytes.extend_from_slice(&chunk.map_err(failed)?);
                if bytes.len() as u64 > most {
                    return Err(too_large(name, most));
                }
            }
            Ok(Some(bytes))
        })
    }

    fn put_if_absent(&self, name: &str, bytes: Vec<u8>) -> io::Result<bool> {
        let path = self.path(name);
        let payload = PutPayload::from(bytes);
        self.runtime.block_on(async {
            match self
                .store
                .put_opts(&path, payload.clone(), PutMode::Create.into())
                .await
            {
                Ok(_) => return Ok(true),
                Err(Error::AlreadyExists { .. }) => return Ok(false),
                Err(Error::NotImplemented { .. }) => {}
                Err(other) => return Err(failed(other)),
            }
            // A server without conditional writes. Two hosts that write at once write the same run.
            match self.store.head(&path).await {
                Ok(_) => Ok(false),
                Err(Error::NotFound { .. }) => {
                    self.store.put(&path, payload).await.map_err(failed)?;
                    Ok(true)
                }
                Err(other) => Err(failed(other)),
            }
        })
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let path = self.path(name);
        let put = self.store.put(&path, PutPayload::from(bytes));
        self.runtime.block_on(put).map(drop).map_err(failed)
    }
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

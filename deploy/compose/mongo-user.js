// The image of MongoDB runs this when it makes its data: the processes come as a user with rights on one database.
db.getSiblingDB("orchestrator").createUser({
  user: process.env.MONGO_APP_USERNAME,
  pwd: process.env.MONGO_APP_PASSWORD,
  roles: [{ role: "readWrite", db: "orchestrator" }],
});

"""An agent made with LangGraph, whose conversation goes on when its work is revised. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another
server; any chat model of LangChain can take the place of this one."""

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from serve import serve


def write(state, config):
    model = ChatOpenAI(model=config["configurable"]["model"])
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("write", write)
graph.add_edge(START, "write")
graph.add_edge("write", END)
conversations = graph.compile(checkpointer=InMemorySaver())


def answer(job):
    session = job["session_id"] or job["execution_id"]
    chosen = {"thread_id": session, "model": job["model"] or "gpt-5-mini"}
    said = conversations.invoke({"messages": [("user", job["prompt"])]}, {"configurable": chosen})[
        "messages"
    ][-1]
    used = said.usage_metadata or {}
    usage = {
        "input_tokens": used.get("input_tokens", 0),
        "output_tokens": used.get("output_tokens", 0),
        "model": chosen["model"],
    }
    return {"output": {"content": said.text}, "usage": usage, "session_id": session}


if __name__ == "__main__":
    serve(answer)
